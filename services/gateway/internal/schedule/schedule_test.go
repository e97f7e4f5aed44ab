package schedule_test

import (
	"fmt"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/tocsin/tocsin/services/gateway/internal/schedule"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// window reads "MON,TUE 22:00-06:00"; "*" is every day.
func window(t testing.TB, s string) schedule.Window {
	t.Helper()
	names := map[string]time.Weekday{"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}
	var days string
	var sh, sm, eh, em int
	if _, err := fmt.Sscanf(s, "%s %d:%d-%d:%d", &days, &sh, &sm, &eh, &em); err != nil {
		t.Fatalf("window %q: %v", s, err)
	}
	w := schedule.Window{Start: sh*60 + sm, End: eh*60 + em}
	if days == "*" {
		w.Days = schedule.EveryDay
		return w
	}
	for i := 0; i+3 <= len(days); i += 4 {
		w.Days |= schedule.On(names[days[i:i+3]])
	}
	return w
}

// Proves rule G4 on ordinary days: start inclusive, end exclusive, over
// midnight, the whole day, "24:00", no window.
func TestOrdinaryDays(t *testing.T) {
	for _, tc := range []struct {
		windows []string
		local   string // Europe/Warsaw; 2020-03-02 is a Monday
		want    bool
	}{
		{[]string{"MON 09:00-17:00"}, "2020-03-02 08:59:59.999", false},
		{[]string{"MON 09:00-17:00"}, "2020-03-02 09:00:00.000", true},
		{[]string{"MON 09:00-17:00"}, "2020-03-02 16:59:59.999", true},
		{[]string{"MON 09:00-17:00"}, "2020-03-02 17:00:00.000", false},
		{[]string{"MON 09:00-17:00"}, "2020-03-03 12:00:00.000", false},

		{[]string{"MON 22:00-06:00"}, "2020-03-02 05:00:00.000", false}, // Sunday's, which is not there
		{[]string{"MON 22:00-06:00"}, "2020-03-02 22:00:00.000", true},
		{[]string{"MON 22:00-06:00"}, "2020-03-03 05:59:59.999", true},
		{[]string{"MON 22:00-06:00"}, "2020-03-03 06:00:00.000", false},
		{[]string{"MON 22:00-06:00"}, "2020-03-03 22:00:00.000", false},
		{[]string{"SUN 22:00-06:00"}, "2020-03-02 05:00:00.000", true}, // Sunday into Monday
		{[]string{"SAT 22:00-06:00"}, "2020-03-08 05:00:00.000", true}, // Saturday into Sunday

		{[]string{"MON 08:00-08:00"}, "2020-03-02 00:00:00.000", true},
		{[]string{"MON 08:00-08:00"}, "2020-03-02 23:59:59.999", true},
		{[]string{"MON 08:00-08:00"}, "2020-03-03 00:00:00.000", false},
		{[]string{"MON 00:00-24:00"}, "2020-03-02 23:59:59.999", true},
		{[]string{"MON 00:00-24:00"}, "2020-03-03 00:00:00.000", false},
		{[]string{"MON 22:00-24:00"}, "2020-03-02 23:59:59.999", true},
		{[]string{"MON 22:00-24:00"}, "2020-03-03 00:00:00.000", false},
		{[]string{"MON 22:00-00:00"}, "2020-03-03 00:00:00.000", false},
		{[]string{"MON 24:00-06:00"}, "2020-03-02 23:59:59.999", false},
		{[]string{"MON 24:00-06:00"}, "2020-03-03 05:59:59.999", true},

		{nil, "2020-03-02 12:00:00.000", false},
		{[]string{"MON 09:00-10:00", "MON 11:00-12:00"}, "2020-03-02 10:30:00.000", false},
		{[]string{"MON 09:00-10:00", "MON 11:00-12:00"}, "2020-03-02 11:30:00.000", true},
	} {
		t.Run(fmt.Sprint(tc.windows, tc.local), func(t *testing.T) {
			warsaw := zone(t, "Europe/Warsaw")
			at, err := time.ParseInLocation("2006-01-02 15:04:05.000", tc.local, warsaw)
			if err != nil {
				t.Fatal(err)
			}
			var ws schedule.Windows
			for _, s := range tc.windows {
				ws = append(ws, window(t, s))
			}
			if got := ws.Contain(at.UTC(), warsaw); got != tc.want {
				t.Errorf("inside = %v, want %v", got, tc.want)
			}
		})
	}
}

// Proves case B36 and its American mirror: on the days on which clocks change
// the readings decide, both of a doubled hour count, and a window that does
// not exist that day neither applies nor sticks. Instants are UTC, so that no
// reading is ambiguous.
func TestClockChanges(t *testing.T) {
	const (
		waking  = "* 06:00-22:00" // what is left by quiet hours of 22:00 to 06:00
		quiet   = "* 22:00-06:00"
		missing = "SUN 02:15-02:45"
	)
	for _, tc := range []struct {
		zone, utc, reads string
		window           string
		want             bool
	}{
		// Warsaw, spring: 29 March 2020, 02:00 CET becomes 03:00 CEST.
		{"Europe/Warsaw", "2020-03-29T03:30:00Z", "Sun 05:30", waking, false},
		{"Europe/Warsaw", "2020-03-29T04:01:00Z", "Sun 06:01", waking, true},
		{"Europe/Warsaw", "2020-03-30T03:30:00Z", "Mon 05:30", waking, false},
		{"Europe/Warsaw", "2020-03-30T04:01:00Z", "Mon 06:01", waking, true},
		{"Europe/Warsaw", "2020-03-29T03:59:59Z", "Sun 05:59", quiet, true},
		{"Europe/Warsaw", "2020-03-29T04:00:00Z", "Sun 06:00", quiet, false},
		{"Europe/Warsaw", "2020-03-29T00:59:59Z", "Sun 01:59", missing, false},
		{"Europe/Warsaw", "2020-03-29T01:00:00Z", "Sun 03:00", missing, false},
		{"Europe/Warsaw", "2020-03-29T01:20:00Z", "Sun 03:20", missing, false},
		{"Europe/Warsaw", "2020-03-29T12:00:00Z", "Sun 14:00", missing, false},
		{"Europe/Warsaw", "2020-03-30T00:30:00Z", "Mon 02:30", missing, false},
		{"Europe/Warsaw", "2020-04-05T00:30:00Z", "Sun 02:30", missing, true},
		// Warsaw, autumn: 25 October 2020, 03:00 CEST becomes 02:00 CET.
		{"Europe/Warsaw", "2020-10-25T00:30:00Z", "Sun 02:30", waking, false},
		{"Europe/Warsaw", "2020-10-25T01:30:00Z", "Sun 02:30", waking, false},
		{"Europe/Warsaw", "2020-10-25T00:30:00Z", "Sun 02:30", missing, true},
		{"Europe/Warsaw", "2020-10-25T00:50:00Z", "Sun 02:50", missing, false},
		{"Europe/Warsaw", "2020-10-25T01:30:00Z", "Sun 02:30", missing, true},
		{"Europe/Warsaw", "2020-10-25T04:59:00Z", "Sun 05:59", waking, false},
		{"Europe/Warsaw", "2020-10-25T05:01:00Z", "Sun 06:01", waking, true},
		// Chicago, spring: 8 March 2020, 02:00 CST becomes 03:00 CDT.
		{"America/Chicago", "2020-03-08T07:59:59Z", "Sun 01:59", quiet, true},
		{"America/Chicago", "2020-03-08T08:00:00Z", "Sun 03:00", quiet, true},
		{"America/Chicago", "2020-03-08T10:59:59Z", "Sun 05:59", quiet, true},
		{"America/Chicago", "2020-03-08T11:00:00Z", "Sun 06:00", quiet, false},
		{"America/Chicago", "2020-03-08T08:20:00Z", "Sun 03:20", missing, false},
		// Chicago, autumn: 1 November 2020, 02:00 CDT becomes 01:00 CST.
		{"America/Chicago", "2020-11-01T06:30:00Z", "Sun 01:30", "SUN 01:00-02:00", true},
		{"America/Chicago", "2020-11-01T07:30:00Z", "Sun 01:30", "SUN 01:00-02:00", true},
		{"America/Chicago", "2020-11-01T08:00:00Z", "Sun 02:00", "SUN 01:00-02:00", false},
		{"America/Chicago", "2020-11-01T06:00:00Z", "Sun 01:00", "SAT 22:00-01:30", true},
		{"America/Chicago", "2020-11-01T06:45:00Z", "Sun 01:45", "SAT 22:00-01:30", false},
		{"America/Chicago", "2020-11-01T07:15:00Z", "Sun 01:15", "SAT 22:00-01:30", true},
		// Beirut: midnight itself does not exist on 29 March 2020.
		{"Asia/Beirut", "2020-03-28T21:59:59Z", "Sat 23:59", "SUN 00:00-06:00", false},
		{"Asia/Beirut", "2020-03-28T22:00:00Z", "Sun 01:00", "SUN 00:00-06:00", true},
		{"Asia/Beirut", "2020-03-28T22:00:00Z", "Sun 01:00", "SAT 22:00-01:00", false},
	} {
		t.Run(fmt.Sprintf("%s %s %s", tc.zone, tc.reads, tc.window), func(t *testing.T) {
			at, err := time.Parse(time.RFC3339, tc.utc)
			if err != nil {
				t.Fatal(err)
			}
			loc := zone(t, tc.zone)
			if reads := at.In(loc).Format("Mon 15:04"); reads != tc.reads {
				t.Fatalf("the clock reads %s, the case says %s", reads, tc.reads)
			}
			if got := (schedule.Windows{window(t, tc.window)}).Contain(at, loc); got != tc.want {
				t.Errorf("inside = %v, want %v", got, tc.want)
			}
		})
	}
}

// Proves, minute by minute over the two weeks around each clock change, that
// Contains agrees with a second implementation that knows nothing of windows
// but a table of all minutes of a week.
func TestAgainstAWeekTable(t *testing.T) {
	windows := schedule.Windows{
		window(t, "MON,WED 22:30-05:15"), window(t, "SUN 02:15-02:45"),
		window(t, "FRI 07:00-07:00"), window(t, "SAT 23:00-24:00"),
	}
	var table [7 * schedule.MinutesOfDay]bool
	for _, w := range windows {
		for d := range time.Weekday(7) {
			if !w.Days.Has(d) {
				continue
			}
			start, length := w.Start, (w.End-w.Start+schedule.MinutesOfDay)%schedule.MinutesOfDay
			if w.Start == w.End {
				start, length = 0, schedule.MinutesOfDay
			}
			for m := range length {
				table[(int(d)*schedule.MinutesOfDay+start+m)%len(table)] = true
			}
		}
	}
	for _, name := range []string{"Europe/Warsaw", "America/Chicago", "Australia/Lord_Howe", "Asia/Kathmandu"} {
		loc := zone(t, name)
		for _, start := range []string{"2020-03-01T00:00:00Z", "2020-03-22T00:00:00Z", "2020-10-01T00:00:00Z", "2020-10-20T00:00:00Z"} {
			at, _ := time.Parse(time.RFC3339, start)
			for range 14 * schedule.MinutesOfDay {
				local := at.In(loc)
				want := table[int(local.Weekday())*schedule.MinutesOfDay+local.Hour()*60+local.Minute()]
				if got := windows.Contain(at, loc); got != want {
					t.Fatalf("%s: %s: inside = %v, want %v", name, local, got, want)
				}
				at = at.Add(time.Minute)
			}
		}
	}
}
