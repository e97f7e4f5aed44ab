// Package schedule says whether an instant is inside a user's weekly windows
// (rule G4). It owns the calendar arithmetic and nothing else: zones come in as
// *time.Location, and what happens outside a window is decided elsewhere.
//
// Invariant: an instant is inside when its local weekday and clock reading
// are. Nothing is computed from lengths of days, so the two days a year on
// which clocks change need no case of their own: a reading that comes twice is
// inside twice, and one that does not come is never inside.
package schedule

import "time"

// Days is a set of weekdays: bit d is time.Weekday d, Sunday being bit 0.
type Days uint8

// On is the set of the weekdays given.
func On(weekdays ...time.Weekday) Days {
	var d Days
	for _, w := range weekdays {
		d |= 1 << w
	}
	return d
}

// EveryDay is all seven.
const EveryDay Days = 1<<7 - 1

// Has says whether w is in the set.
func (d Days) Has(w time.Weekday) bool { return d>>w&1 == 1 }

// MinutesOfDay is what "24:00" is in minutes after midnight.
const MinutesOfDay = 24 * 60

// Window is a part of some days: minutes after local midnight, 0 to
// MinutesOfDay, start inclusive and end exclusive. Start after End runs into
// the next day and belongs to the day it starts on; Start equal to End is the
// whole day.
type Window struct {
	Days       Days
	Start, End int
}

// Contains says whether t is inside the window in zone.
func (w Window) Contains(t time.Time, zone *time.Location) bool {
	local := t.In(zone)
	today := local.Weekday()
	minute := local.Hour()*60 + local.Minute()
	switch {
	case w.Start == w.End:
		return w.Days.Has(today)
	case w.Start < w.End:
		return w.Days.Has(today) && w.Start <= minute && minute < w.End
	default:
		yesterday := (today + 6) % 7
		return w.Days.Has(today) && w.Start <= minute || w.Days.Has(yesterday) && minute < w.End
	}
}

// Windows are a user's; none at all means nothing, ever.
type Windows []Window

// Always is what the console gives a new user.
func Always() Windows { return Windows{{Days: EveryDay, Start: 0, End: MinutesOfDay}} }

// Contain says whether t is inside at least one of the windows in zone.
func (ws Windows) Contain(t time.Time, zone *time.Location) bool {
	for _, w := range ws {
		if w.Contains(t, zone) {
			return true
		}
	}
	return false
}
