// Package device is the machine of one device: it owns what is believed about
// it (rules, sections 1 to 5 and 7), that is which sample is newer, which
// condition is confirmed, what is held before it is told, which motion is a
// double.
//
// It does not know Kafka, settings records, users, the clock or any other
// device, and it keeps nothing: a State goes in, a State comes out. Who owns
// the States, when a deadline is due and what becomes of the effects is package
// partition's.
//
// Invariant: Step is a function of its arguments, and every State it returns
// passes Check.
//
//	           Offline, InternetOffline            deadline
//	Unknown ─┬──────────────────────────► hold ───────────────► outage ◄─┐
//	   │     │                             │ Online: withdrawn    │  │   │ other kind:
//	   │     │                             ▼                      │  └───┘ hold, deadline
//	   └─────┴── Online ────────────►   Online ◄─── deadline ── hold
//	             (silently)                                (Online)
//
// Off lies over all of these: it ends a hold and leaves the rest as it is.
// Times are milliseconds since 1970, UTC.
package device

import (
	"errors"
	"fmt"
)

// Condition is what a device is in, or what a sample says it is in.
type Condition uint8

const (
	// Unknown is "nothing is confirmed yet"; in a sample, "it says nothing" (rule S1).
	Unknown Condition = iota
	// Online is what needs no telling.
	Online
	// Offline is a device that streams nothing, though its site is reached.
	Offline
	// InternetOffline is a device that is not registered with the service any more.
	InternetOffline
	// Off is a device that the user has switched off; it is never confirmed.
	Off
	conditions
)

// Outage tells the two conditions that make one.
func (c Condition) Outage() bool { return c == Offline || c == InternetOffline }

func (c Condition) String() string {
	if c >= conditions {
		return fmt.Sprintf("Condition(%d)", uint8(c))
	}
	return [conditions]string{"unknown", "online", "offline", "internet-offline", "off"}[c]
}

// Trace is the W3C context of a span: trace id, then span id. Zero is none.
type Trace [24]byte

// Sample is what rule O1 needs of a status: the last applied one is remembered.
type Sample struct {
	// Run is the hash of source id and epoch (RunOf); 0 is an unnamed run.
	Run uint64
	// Sequence is the position in the run; 0 is none.
	Sequence uint64
	// Occur and Receive are as rules T1 and T2 leave them.
	Occur, Receive int64
	// Condition is Unknown only in "no sample yet".
	Condition Condition
}

// Candidate is what may become confirmed.
type Candidate struct {
	// Since is the occur time of the sample that began it.
	Since int64
	// Started is that sample's append time.
	Started int64
	// Deadline is when it becomes confirmed (rule T4).
	Deadline int64
	// Receive is that sample's receive time, for the delay without the hold.
	Receive int64
	// Trace is the context of the ETag that began it.
	Trace Trace
	// Condition is Unknown when nothing is pending.
	Condition Condition
	// Password: the device waits for its password (status bit 8).
	Password bool
	// Corrected: Since is not what the source said (rule T2).
	Corrected bool
}

// State is all that is known about one device, its spans of motion aside. The
// zero value is a device never heard of. It holds no pointers: a partition has
// them in one slice, and a copy is a snapshot.
type State struct {
	Candidate Candidate
	Last      Sample
	// Since is the occur time of the sample that confirmed Confirmed.
	Since int64
	// Outage is Since of the first Due of the outage that is confirmed (rule
	// H8); it means nothing while Confirmed is no outage.
	Outage int64
	// Confirmed is C of the rules.
	Confirmed Condition
	// Password belongs to Confirmed, as it does in Candidate.
	Password bool
}

// Off tells whether the user has switched the device off (rule H2).
func (s *State) Off() bool { return s.Last.Condition == Off }

// Due is when the hold ends, if one is pending.
func (s *State) Due() (at int64, ok bool) {
	return s.Candidate.Deadline, s.Candidate.Condition != Unknown
}

// MaxTime is the last millisecond of the year 9999, the end of RFC 3339.
const MaxTime = 253402300799999

// Check says what is impossible about s, or nil. Restore asks it about bytes
// that nobody vouches for, Step about its own work.
func (s *State) Check() error {
	c := &s.Candidate
	for _, t := range [...]struct {
		name string
		ms   int64
	}{
		{"since", s.Since},
		{"outage", s.Outage},
		{"last occur", s.Last.Occur},
		{"last receive", s.Last.Receive},
		{"candidate since", c.Since},
		{"candidate started", c.Started},
		{"candidate receive", c.Receive},
		{"candidate deadline", c.Deadline},
	} {
		// A hold may end after the last time that a source can name.
		if t.ms < 0 || t.ms > 2*MaxTime {
			return fmt.Errorf("%s: %d ms is out of range", t.name, t.ms)
		}
	}
	switch {
	case s.Confirmed >= Off:
		return fmt.Errorf("confirmed %v: not a condition that can be confirmed", s.Confirmed)
	case s.Last.Condition >= conditions:
		return fmt.Errorf("last sample %v: no such condition", s.Last.Condition)
	case s.Last.Condition == Unknown && s.Last != Sample{}:
		return errors.New("last sample: it says nothing, and yet it was applied")
	case s.Last.Occur > s.Last.Receive:
		return errors.New("last sample: it occurred after it was received")
	case s.Outage != 0 && !s.Confirmed.Outage():
		return fmt.Errorf("an outage while %v is confirmed", s.Confirmed)
	case s.Confirmed == Unknown && s.Since != 0:
		return errors.New("since: nothing is confirmed")
	case s.Password && s.Confirmed != Offline:
		return fmt.Errorf("password needed while %v is confirmed", s.Confirmed)
	}
	if c.Condition == Unknown {
		if *c != (Candidate{}) {
			return errors.New("candidate: leftovers of one that ended")
		}
		return nil
	}
	switch {
	case c.Condition >= Off:
		return fmt.Errorf("candidate %v: not a condition that can be confirmed", c.Condition)
	case c.Condition == s.Confirmed:
		return fmt.Errorf("candidate %v: it is confirmed already", c.Condition)
	case c.Condition == Online && !s.Confirmed.Outage():
		return fmt.Errorf("candidate online while %v is confirmed (rule H4)", s.Confirmed)
	case s.Off():
		return errors.New("candidate: the device is switched off (rule H2)")
	case c.Deadline < c.Since || c.Deadline < c.Started || c.Started < c.Receive || c.Receive < c.Since:
		return fmt.Errorf("candidate: since %d, receive %d, started %d, deadline %d are not in this order",
			c.Since, c.Receive, c.Started, c.Deadline)
	case c.Password && c.Condition != Offline:
		return fmt.Errorf("candidate %v: password needed", c.Condition)
	}
	return nil
}
