package monitor

import (
	"fmt"
	"sort"
	"time"
)

// oracle is the rules a second time, written plainly from the page: maps and
// strings, every deadline looked at each time, no undo, no snapshot. It shares
// no code with the monitor.
type oracle struct {
	hold    map[string]time.Duration
	clock   time.Time
	devices map[[2]string]*oracleDevice
	out     []oracleTold
}

type oracleDevice struct {
	account, id string
	confirmed   string
	confirmedAt time.Time // since of what confirmed it
	outage      time.Time // since of the first Due of the outage
	candidate   string    // "" is none
	since       time.Time
	started     time.Time
	deadline    time.Time
	off         bool
	last        *oracleSample
	spans       []oracleSpan
}

type oracleSample struct {
	run            string // "" is unnamed
	sequence       uint64
	occur, receive time.Time
	state          string
}

type oracleSpan struct {
	region, span string
	occur        time.Time
}

// oracleTold is a stage of a notification.
type oracleTold struct {
	At                     time.Time
	Account, Device, Stage string
	Type                   string
	Since                  time.Time
	Outage                 time.Time // zero is none
	Became                 string
	Deadline               time.Time // of a pending
	Region, Span           string
}

// oracleEvent is an event as its JSON has it.
type oracleEvent struct {
	EventID, AccountID, DeviceID    string
	SourceID, SourceEpoch, Sequence string
	OccurTime, ReceiveTime          *time.Time
	AppendTime                      *time.Time
	Spooled, Restated               bool
	Status                          *struct {
		Bits        uint32
		Kind, State string
	}
	Motion *struct{ Phase, SpanID, RegionID string }
}

func newOracle(h Holds) *oracle {
	return &oracle{
		hold:    map[string]time.Duration{"OFFLINE": h.Offline, "INTERNET_OFFLINE": h.InternetOffline, "ONLINE": h.Online},
		devices: map[[2]string]*oracleDevice{},
	}
}

func isOutage(state string) bool { return state == "OFFLINE" || state == "INTERNET_OFFLINE" }

// advance is T3: every deadline <= the clock fires, in order of (deadline,
// account, device).
func (o *oracle) advance(clock time.Time) {
	if clock.After(o.clock) {
		o.clock = clock
	}
	for {
		var due []*oracleDevice
		for _, d := range o.devices {
			if d.candidate != "" && !d.deadline.After(o.clock) {
				due = append(due, d)
			}
		}
		if len(due) == 0 {
			return
		}
		sort.Slice(due, func(i, j int) bool {
			a, b := due[i], due[j]
			if !a.deadline.Equal(b.deadline) {
				return a.deadline.Before(b.deadline)
			}
			if a.account != b.account {
				return a.account < b.account
			}
			return a.id < b.id
		})
		d := due[0]
		// H7 and H8.
		if isOutage(d.candidate) && !isOutage(d.confirmed) {
			d.outage = d.since
		}
		o.tell(d, oracleTold{At: d.deadline, Stage: "due", Type: d.candidate, Since: d.since, Outage: d.outage})
		d.confirmed, d.confirmedAt, d.candidate = d.candidate, d.since, ""
		if d.confirmed == "ONLINE" {
			d.outage = time.Time{}
		}
	}
}

func (o *oracle) tell(d *oracleDevice, t oracleTold) {
	t.Account, t.Device = d.account, d.id
	o.out = append(o.out, t)
}

func (o *oracle) withdraw(d *oracleDevice) {
	if d.candidate != "" {
		o.tell(d, oracleTold{At: o.clock, Stage: "withdrawn", Type: d.candidate, Since: d.since, Outage: d.outage})
		d.candidate = ""
	}
}

// pend sets the deadline (T4) and says so.
func (o *oracle) pend(d *oracleDevice) {
	hold := o.hold[d.candidate]
	settle := time.Minute
	if hold < settle {
		settle = hold
	}
	d.deadline = d.since.Add(hold)
	if t := d.started.Add(settle); t.After(d.deadline) {
		d.deadline = t
	}
	if o.clock.After(d.deadline) {
		d.deadline = o.clock
	}
	o.tell(d, oracleTold{At: o.clock, Stage: "pending", Type: d.candidate, Since: d.since, Outage: d.outage, Deadline: d.deadline})
}

// event handles one event; the clock has been advanced to it.
func (o *oracle) event(e *oracleEvent) {
	key := [2]string{e.AccountID, e.DeviceID}
	d := o.devices[key]
	if d == nil {
		d = &oracleDevice{account: e.AccountID, id: e.DeviceID, confirmed: "UNKNOWN"}
		o.devices[key] = d
	}
	// T1.
	receive := o.clock
	if e.ReceiveTime != nil && (e.Spooled || e.Restated) && !e.ReceiveTime.After(o.clock) {
		receive = e.ReceiveTime.Truncate(time.Millisecond)
	}
	// T2.
	occur := receive
	if e.OccurTime != nil {
		t := e.OccurTime.Truncate(time.Millisecond)
		if t.Before(receive) && t.UnixMilli() > 0 && !t.Before(receive.Add(-7*24*time.Hour)) {
			occur = t
		}
	}
	switch {
	case e.Status != nil:
		if state := readState(e.Status.Bits, e.Status.Kind, e.Status.State); state != "" {
			s := oracleSample{occur: occur, receive: receive, state: state}
			if e.SourceID != "" && e.SourceEpoch != "" {
				s.run = e.SourceID + " " + e.SourceEpoch
			}
			if e.Sequence != "" {
				fmt.Sscan(e.Sequence, &s.sequence)
			}
			o.sample(d, s)
		}
	case e.Motion != nil && e.Motion.Phase == "START":
		o.motion(d, oracleSpan{region: e.Motion.RegionID, span: e.Motion.SpanID, occur: occur})
	}
}

// readState is S1 and S3; "" changes nothing.
func readState(bits uint32, kind, state string) string {
	switch state {
	case "ONLINE", "OFFLINE", "INTERNET_OFFLINE", "OFF":
		return state
	case "", "UNKNOWN":
	default:
		return ""
	}
	bit := func(n int) bool { return bits>>n&1 == 1 }
	if bits == 0 || bit(16) {
		return ""
	}
	if !bit(17) {
		return "OFF"
	}
	if !bit(20) {
		return "INTERNET_OFFLINE"
	}
	if bit(18) || kind == "BRIDGE" {
		return "ONLINE"
	}
	return "OFFLINE"
}

// wins is O1: whether b, which arrived after a, is the newer of the two.
func wins(a, b oracleSample) bool {
	sameRun := a.run != "" && a.run == b.run
	if sameRun && a.sequence > 0 && b.sequence > 0 {
		if a.sequence == b.sequence {
			return false // O2
		}
		low, high := a, b
		if b.sequence < a.sequence {
			low, high = b, a
		}
		restarted := low.occur.After(high.occur) && low.receive.Sub(high.receive) > 60*time.Second
		if restarted {
			return b == low
		}
		return b == high
	}
	if !sameRun {
		later := b
		apart := b.receive.Sub(a.receive)
		if apart < 0 {
			later, apart = a, -apart
		}
		if apart > 60*time.Second && later.receive.Sub(later.occur) <= 60*time.Second {
			return later == b
		}
	}
	if !a.occur.Equal(b.occur) {
		return b.occur.After(a.occur)
	}
	if a.state == "ONLINE" && b.state != "ONLINE" {
		return false
	}
	return true
}

func (o *oracle) sample(d *oracleDevice, s oracleSample) {
	if d.last != nil && !wins(*d.last, s) {
		return
	}
	d.last = &s
	paused := func(stage string) {
		if isOutage(d.confirmed) {
			o.tell(d, oracleTold{At: o.clock, Stage: stage, Type: d.confirmed, Since: d.confirmedAt, Outage: d.outage})
		}
	}
	if s.state == "OFF" { // H2
		o.withdraw(d)
		if !d.off {
			d.off = true
			paused("paused")
		}
		return
	}
	if d.off {
		d.off = false
		paused("resumed")
	}
	switch {
	case s.state == d.confirmed: // H3
		o.withdraw(d)
		return
	case s.state == d.candidate: // H3
		return
	case d.confirmed == "UNKNOWN" && s.state == "ONLINE": // H4
		o.withdraw(d)
		d.confirmed, d.confirmedAt = "ONLINE", s.occur
		return
	}
	if !isOutage(d.confirmed) && d.candidate != "" { // H5, second sentence
		o.tell(d, oracleTold{At: o.clock, Stage: "withdrawn", Type: d.candidate, Since: d.since, Became: s.state})
	} else { // H5, H6
		o.withdraw(d)
		d.since, d.started = s.occur, o.clock
	}
	d.candidate = s.state
	o.pend(d)
}

// motion is M1 to M3.
func (o *oracle) motion(d *oracleDevice, s oracleSpan) {
	name := s.span
	if name == "" {
		s.span = s.occur.String()
	}
	for _, old := range d.spans {
		apart := s.occur.Sub(old.occur).Abs()
		if old.region == s.region && old.span == s.span && apart <= time.Hour {
			return
		}
	}
	d.spans = append(d.spans, s)
	if len(d.spans) > 32 {
		d.spans = d.spans[1:]
	}
	stage := "due"
	if o.clock.Sub(s.occur) > 15*time.Minute {
		stage = "late"
	}
	o.tell(d, oracleTold{At: o.clock, Stage: stage, Type: "ALERT", Since: s.occur, Region: s.region, Span: name})
}
