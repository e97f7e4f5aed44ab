// Package account is the machine of one account (rules, sections 8 to 10): who
// is told what, and what becomes of each mail. It owns the order of the checks,
// the recovery's promise, intents, leases, retries and ends of mails. It does
// not read settings, does not render or send, keeps no clock and does not log:
// settings, times and results come in, effects go out.
//
// Invariant: what is decided is a function of the inputs, in their order, and
// of the settings at each. Time is an input; the order of maps never shows.
//
// A notification:
//
//	Notified ──> undecided ──Decide, on a tick──> outcomes, mails
//	                              └─ a recovery stays for users whose attempt
//	                                 about the outage is under way (rule G8)
//
// and a mail: see Mail.
package account

import (
	"fmt"
	"time"
)

// Rules are the numbers of the rules; the zero value is no use.
type Rules struct {
	// Lease is how long an intent is good for without a renewal.
	Lease time.Duration
	// AlertAge and StatusAge end the retries: an alert's counts from when it
	// occurred, as M3 does, a status's from its decision (its outage may be old).
	AlertAge, StatusAge time.Duration
	// LateAfter makes an alert late that is decided longer after it occurred (M3).
	LateAfter time.Duration
	// UncertainRetries is how often a mail that may have arrived is tried again.
	UncertainRetries int
	// The first retry comes after about BackoffFirst; each later one after twice
	// as long, at most about BackoffMost.
	BackoffFirst, BackoffMost time.Duration
	// MessageDomain is the right side of Message-IDs.
	MessageDomain string
}

// Default are the rules' own numbers.
func Default() Rules {
	return Rules{
		Lease:            60 * time.Second,
		AlertAge:         15 * time.Minute,
		StatusAge:        24 * time.Hour,
		LateAfter:        15 * time.Minute,
		UncertainRetries: 2,
		BackoffFirst:     10 * time.Second,
		BackoffMost:      5 * time.Minute,
		MessageDomain:    "tocsin.invalid",
	}
}

// Input is one of Notified, Decide, Begin, Elapse, Result and Renewal. At is
// the partition's clock, and never goes back.
type Input interface{ input() }

// Notified says that a notification was read.
type Notified struct {
	At           time.Time
	Offset       int64
	Notification *Notification
	Trace        string
}

// Decide says that a tick was read (rule G0): the oldest decidable notification
// is to be decided. Trace goes into its mails in place of the notification's.
type Decide struct {
	At    time.Time
	Trace string
}

// Begin says that there is room for one attempt more: the mail that waited
// longest is to be tried. There must be one whose time has come.
type Begin struct{ At time.Time }

// Elapse says that the clock moved; leases and lives that ended by now have ended.
type Elapse struct{ At time.Time }

// Ended says that the result of an attempt was read.
type Ended struct {
	At     time.Time
	Result Result
}

// Renewed says that an attempt was seen alive.
type Renewed struct {
	At      time.Time
	Mail    string
	Attempt int
}

func (Notified) input() {}
func (Decide) input()   {}
func (Begin) input()    {}
func (Elapse) input()   {}
func (Ended) input()    {}
func (Renewed) input()  {}

// Effect is one of Changed, Decided, Attempted, Begun and Counted: what the
// shell is to do, in this order.
type Effect interface{ effect() }

// Changed says that what is kept under Key is another now; Before is nil for a new part.
// What it is now, the State says.
type Changed struct {
	Key    Key
	Before Part
}

// Decided has the outcomes of one notification, each recipient once.
type Decided struct {
	At           time.Time
	Notification *Notification
	// Read is the clock when the notification was read.
	Read time.Time
	// Trace of the decision.
	Trace    string
	Outcomes []Outcome
	// Further: an earlier decision had the other recipients.
	Further bool
}

// Attempted says what became of an attempt, or of a mail without one.
type Attempted struct {
	At     time.Time
	Mail   *Mail
	Reason Reason
	// Attempt is the number of the one that ended; 0 for an end without one.
	Attempt int
	// Result is nil where there was none: the lease ended.
	Result *Result
	// Settled: nothing more is tried.
	Settled bool
}

// Begun is an intent; the attempt may be made once it is stored.
type Begun struct{ Mail *Mail }

// Counted is an input that changed nothing.
type Counted struct{ Why Ignored }

func (Changed) effect()   {}
func (Decided) effect()   {}
func (Attempted) effect() {}
func (Begun) effect()     {}
func (Counted) effect()   {}

// Ignored says why an input changed nothing.
type Ignored string

// Why inputs change nothing.
const (
	// NotToTell: a stage that is for others to know.
	NotToTell Ignored = "notToTell"
	// Repeated: the notification is known, or was decided lately.
	Repeated Ignored = "repeated"
	// UnknownMail: a fact about a mail that is settled or never was.
	UnknownMail Ignored = "unknownMail"
	// OldAttempt: a fact about an attempt that has its result already.
	OldAttempt Ignored = "oldAttempt"
)

// step is one call of Step: the state it changes and the effects so far.
type step struct {
	Rules
	*State
	settings *Settings
	at       time.Time
	effects  []Effect
}

// Step takes one input and changes s accordingly. set may be nil for any input
// but Decide, and is not kept.
func (r Rules) Step(s *State, set *Settings, in Input) []Effect {
	st := step{Rules: r, State: s, settings: set}
	switch in := in.(type) {
	case Notified:
		st.at = in.At
		st.notified(in)
	case Decide:
		st.at = in.At
		st.decide(in.Trace)
	case Begin:
		st.at = in.At
		st.begin()
	case Elapse:
		st.at = in.At
		st.elapse()
	case Ended:
		st.at = in.At
		st.ended(in.Result)
	case Renewed:
		st.at = in.At
		st.renewed(in.Mail, in.Attempt)
	default:
		panic(fmt.Sprintf("account: input %T", in))
	}
	return st.effects
}

func (st *step) effect(e Effect) { st.effects = append(st.effects, e) }

// put changes the state, and says so.
func (st *step) put(key Key, part Part) {
	st.effect(Changed{Key: key, Before: st.Part(key)})
	st.Put(key, part)
}

func (st *step) keep(part Part) { st.put(part.Key(), part) }
func (st *step) drop(key Key)   { st.put(key, nil) }

func (st *step) notified(in Notified) {
	n := in.Notification
	switch n.Stage {
	case Due, Late:
	default:
		st.effect(Counted{NotToTell})
		return
	}
	if _, known := st.waiting[n.ID]; known || st.recent.has(n.ID) {
		st.effect(Counted{Repeated})
		return
	}
	st.keep(&Undecided{Notification: n, Offset: in.Offset, Read: in.At, Trace: in.Trace})
}
