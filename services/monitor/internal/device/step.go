package device

import (
	"fmt"
	"time"
)

// Rules are the settings of one device: how long each condition is held before
// it is told (rule H1). 0 is "at once".
type Rules struct {
	Offline, InternetOffline, Online time.Duration
}

// DefaultRules are those of rule H1.
var DefaultRules = Rules{Offline: 300 * time.Second, InternetOffline: 300 * time.Second, Online: 95 * time.Second}

// hold is how long c is held, in ms.
func (r Rules) hold(c Condition) int64 {
	switch c {
	case Online:
		return r.Online.Milliseconds()
	case Offline:
		return r.Offline.Milliseconds()
	case InternetOffline:
		return r.InternetOffline.Milliseconds()
	}
	panic(fmt.Sprintf("device: %v is not held", c))
}

// deadline is rule T4.
func (r Rules) deadline(c Candidate, clock int64) int64 {
	hold := r.hold(c.Condition)
	return max(c.Since+hold, c.Started+min(hold, settleLimit), clock)
}

// Kind says which fields of an Input count.
type Kind uint8

const (
	// Status is a sample.
	Status Kind = iota + 1
	// MotionStart is motion that began.
	MotionStart
	// Wake is the deadline of the hold that has come.
	Wake
	// Forget is a device that is gone: what is pending is withdrawn, nothing is known.
	Forget
)

// Input is one thing that the machine is told.
type Input struct {
	Kind Kind
	// At is the partition's clock, the only "now" there is. For a record it
	// is the append time (rule T1).
	At int64
	// Occur and Receive are as OccurTime and ReceiveTime say.
	Occur, Receive int64
	// Corrected: the source's time was not believed.
	Corrected bool
	// Trace is the context of the ETag.
	Trace Trace

	// Of a Status.
	Reading       Reading
	Run, Sequence uint64

	// Of a MotionStart: the span, what is remembered of earlier ones, oldest
	// first, and whether its region makes no alerts (rule M1).
	Span     Span
	Spans    []Span
	Disabled bool
}

// Type is what a notification is about.
type Type uint8

const (
	// NoType is no notification.
	NoType Type = iota
	// Alert tells of motion.
	Alert
	// OfflineType tells of Offline.
	OfflineType
	// OnlineType tells that an outage is over.
	OnlineType
	// InternetOfflineType tells of InternetOffline.
	InternetOfflineType
)

// TypeOf is the type of the notification about c.
func TypeOf(c Condition) Type {
	switch c {
	case Online:
		return OnlineType
	case Offline:
		return OfflineType
	case InternetOffline:
		return InternetOfflineType
	}
	panic(fmt.Sprintf("device: no notification tells of %v", c))
}

func (t Type) String() string {
	return [...]string{"NONE", "ALERT", "OFFLINE", "ONLINE", "INTERNET_OFFLINE"}[t]
}

// Stage is how far a notification has come (rules, section 1).
type Stage uint8

const (
	// Pending is a hold that began.
	Pending Stage = iota + 1
	// Withdrawn is a hold that ended early: there is nothing to tell.
	Withdrawn
	// Due asks to tell people.
	Due
	// Late is an alert that came too late to be one (rule M3).
	Late
	// Paused is an outage of a device that was switched off (rule H2).
	Paused
	// Resumed is its end.
	Resumed
)

func (s Stage) String() string {
	return [...]string{"", "pending", "withdrawn", "due", "late", "paused", "resumed"}[s]
}

// EffectKind says which fields of an Effect count.
type EffectKind uint8

const (
	// Notify asks to send Notice.
	Notify EffectKind = iota + 1
	// Count asks to count Why.
	Count
	// Remember asks to add Span to the device's (see Remembered).
	Remember
)

// Effect is one thing that the machine asks for.
type Effect struct {
	Kind   EffectKind
	Why    Reason
	Span   Span
	Notice Notice
}

// Notice is one stage of a notification, without the names that the machine
// does not know.
type Notice struct {
	Type  Type
	Stage Stage
	// Since is the occur time of the sample that began it.
	Since int64
	// Decide is the deadline for what was held, else the clock.
	Decide int64
	// Deadline of a Pending is when the hold ends.
	Deadline int64
	// Started and Receive are those of the sample that began it; Decide less
	// Started is the hold spent (rule H7).
	Started, Receive int64
	// Outage is Since of the first Due of the outage (rule H8), if InOutage.
	Outage   int64
	InOutage bool
	// Became of a Withdrawn is the kind that the candidate changed to (rule H9).
	Became Type
	// Password: Offline because the device waits for its password.
	Password bool
	// Corrected: Since is not what the source said (rule T2).
	Corrected bool
	// Trace is the context of the ETag that began it.
	Trace Trace
}

// Reason is why something is counted.
type Reason uint8

const (
	// StaleRepeat is the sequence of the last applied sample again.
	StaleRepeat Reason = iota + 1
	// StaleSequence is a lower sequence in the same run.
	StaleSequence
	// StaleReceive is a sample received long before the last applied one.
	StaleReceive
	// StaleOccur is a sample that occurred before the last applied one.
	StaleOccur
	// StaleTie is a sample that occurred with the last applied one, which says Online.
	StaleTie
	// StatusZero is a mask of 0, which says nothing (rule S1).
	StatusZero
	// StatusInvalid is a mask that says of itself that it is not valid (rule S1).
	StatusInvalid
	// StatusUnknown is a state not known here (rule S1).
	StatusUnknown
	// MotionDouble is a start of motion that is remembered (rule M2).
	MotionDouble
	// MotionDisabled is motion in a region that makes no alerts (rule M1).
	MotionDisabled
	// TimeCorrected is a source's time that was not believed (rule T2).
	TimeCorrected
	// Reasons is how many there are, 0 included.
	Reasons
)

func (r Reason) String() string {
	return [Reasons]string{
		"", "repeat", "sequence", "receive_time", "occur_time", "tie",
		"status_zero", "status_invalid", "state_unknown",
		"motion_double", "motion_disabled", "time_corrected",
	}[r]
}

// Step is the machine: what becomes of s when it is told in, and what is to be
// done about it, appended to effects. A Wake without a hold that is due, and a
// result that fails Check, are bugs of ours and panic.
func (r Rules) Step(s State, in Input, effects []Effect) (State, []Effect) {
	before := s
	m := machine{Rules: r, State: s, in: in, effects: effects}
	switch in.Kind {
	case Status:
		m.status()
	case MotionStart:
		m.motionStart()
	case Wake:
		m.wake()
	case Forget:
		m.withdraw()
		m.State = State{}
	default:
		panic(fmt.Sprintf("device: input of kind %d", in.Kind))
	}
	if m.State != before {
		if err := m.Check(); err != nil {
			panic(fmt.Sprintf("device: %v\nbefore %+v\ninput %+v\nafter %+v", err, before, in, m.State))
		}
	}
	return m.State, m.effects
}

// machine is one step in progress.
type machine struct {
	Rules
	State
	in      Input
	effects []Effect
}

func (m *machine) count(why Reason) {
	m.effects = append(m.effects, Effect{Kind: Count, Why: why})
}

func (m *machine) notify(n Notice) {
	m.effects = append(m.effects, Effect{Kind: Notify, Notice: n})
}

// status applies rules S1, O1, O2 and H2 to H6.
func (m *machine) status() {
	to := m.in.Reading.Condition
	if to == Unknown {
		m.count(m.in.Reading.Why)
		return
	}
	next := Sample{
		Run: m.in.Run, Sequence: m.in.Sequence,
		Occur: m.in.Occur, Receive: m.in.Receive,
		Condition: to,
	}
	newer, why := Newer(m.Last, next)
	if !newer {
		m.count(why)
		return
	}
	wasOff := m.Off()
	m.Last = next

	if to == Off { // H2
		m.withdraw()
		if !wasOff {
			m.outageNotice(Paused)
		}
		return
	}
	if wasOff {
		m.outageNotice(Resumed)
	}
	pending := m.Candidate.Condition
	switch {
	case to == m.Confirmed: // H3
		m.withdraw()
	case to == pending: // H3
	case m.Confirmed == Unknown && to == Online: // H4
		m.withdraw()
		m.Confirmed, m.Since = Online, m.in.Occur
	case !m.Confirmed.Outage() && pending.Outage(): // H5, the other kind
		m.changeKind(to)
	default: // H5, H6
		m.withdraw()
		m.begin(to)
	}
}

// begin starts a hold.
func (m *machine) begin(to Condition) {
	c := Candidate{
		Condition: to,
		Since:     m.in.Occur,
		Started:   m.in.At,
		Receive:   m.in.Receive,
		Trace:     m.in.Trace,
		Password:  m.in.Reading.Password,
		Corrected: m.in.Corrected,
	}
	c.Deadline = m.deadline(c, m.in.At)
	m.Candidate = c
	m.candidateNotice(Pending, NoType)
}

// changeKind is rule H5 when an outage of the other kind is pending.
func (m *machine) changeKind(to Condition) {
	m.candidateNotice(Withdrawn, TypeOf(to))
	c := &m.Candidate
	c.Condition, c.Password = to, m.in.Reading.Password
	c.Deadline = m.deadline(*c, m.in.At)
	m.candidateNotice(Pending, NoType)
}

// withdraw ends a hold, if one is pending, without telling.
func (m *machine) withdraw() {
	if m.Candidate.Condition == Unknown {
		return
	}
	m.candidateNotice(Withdrawn, NoType)
	m.Candidate = Candidate{}
}

// wake is rule H7.
func (m *machine) wake() {
	c := m.Candidate
	if c.Condition == Unknown || c.Deadline > m.in.At {
		panic(fmt.Sprintf("device: woken at %d without a hold that ends by then: %+v", m.in.At, m.State))
	}
	if c.Condition.Outage() && !m.Confirmed.Outage() {
		m.Outage = c.Since
		m.Confirmed = c.Condition // so that the notice is told as part of the outage
	}
	m.candidateNotice(Due, NoType)
	m.Confirmed, m.Since, m.Password = c.Condition, c.Since, c.Password
	if c.Condition == Online {
		m.Outage = 0
	}
	m.Candidate = Candidate{}
}

// candidateNotice tells a stage of what is pending.
func (m *machine) candidateNotice(stage Stage, became Type) {
	c := &m.Candidate
	n := Notice{
		Type:      TypeOf(c.Condition),
		Stage:     stage,
		Since:     c.Since,
		Decide:    m.in.At,
		Started:   c.Started,
		Receive:   c.Receive,
		Outage:    m.Outage,
		InOutage:  m.Confirmed.Outage(),
		Became:    became,
		Password:  c.Password,
		Corrected: c.Corrected,
		Trace:     c.Trace,
	}
	switch stage {
	case Pending:
		n.Deadline = c.Deadline
	case Due:
		n.Decide = c.Deadline
	}
	m.notify(n)
}

// outageNotice tells that a confirmed outage is paused or resumed (rule H2).
func (m *machine) outageNotice(stage Stage) {
	if !m.Confirmed.Outage() {
		return
	}
	m.notify(Notice{
		Type:     TypeOf(m.Confirmed),
		Stage:    stage,
		Since:    m.Since,
		Decide:   m.in.At,
		Started:  m.in.At,
		Receive:  m.in.Receive,
		Outage:   m.Outage,
		InOutage: true,
		Password: m.Password,
		Trace:    m.in.Trace,
	})
}

// HoldSpent is the deliberate wait before a Due (rule H7): from the append time
// of the sample that began it to the deadline, 0 for an alert.
func (n *Notice) HoldSpent() time.Duration {
	return time.UnixMilli(n.Decide).Sub(time.UnixMilli(n.Started))
}
