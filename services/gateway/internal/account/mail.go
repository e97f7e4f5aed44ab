package account

import (
	"fmt"
	"slices"
	"time"
)

// begin writes the intent of an attempt of the mail that has waited longest.
func (st *step) begin() {
	id, next, ok := st.starts.Min()
	if !ok || next > st.at.UnixMilli() {
		panic(fmt.Sprintf("account: Begin at %s with no mail whose time has come", st.at))
	}
	m := *st.mails[id]
	m.Status = Attempting
	m.Attempt++
	m.Lease = st.at.Add(st.Lease)
	m.Next = time.Time{}
	st.keep(&m)
	st.effect(Begun{&m})
}

// elapse ends leases and lives, the earliest first.
func (st *step) elapse() {
	for {
		id, end, ok := st.ends.Min()
		if !ok || end > st.at.UnixMilli() {
			return
		}
		m := *st.mails[id]
		switch m.Status {
		case Waiting:
			st.conclude(&m, 0, nil)
		case Attempting:
			m.Silent = append(slices.Clone(m.Silent), m.Attempt)
			st.conclude(&m, Uncertain, nil)
		case Unanswered:
			st.settle(&m)
		}
	}
}

// ended takes the result of the attempt under way, or a late one of an attempt
// whose lease has ended.
func (st *step) ended(r Result) {
	known := st.mails[r.Mail]
	if known == nil {
		st.effect(Counted{UnknownMail})
		return
	}
	m := *known
	late := slices.Index(m.Silent, r.Attempt)
	switch {
	case late >= 0:
		m.Silent = slices.Delete(slices.Clone(m.Silent), late, late+1)
	case m.Status == Attempting && r.Attempt == m.Attempt:
	default:
		st.effect(Counted{OldAttempt})
		return
	}
	switch r.Outcome {
	case Sent:
		m.Sent = true
	case Uncertain:
		m.Uncertain++
	}
	if late >= 0 && m.Status == Attempting {
		// The retry has begun and cannot be stopped: its own end concludes.
		st.keep(&m)
		st.effect(Attempted{At: st.at, Mail: &m, Reason: r.Outcome, Attempt: r.Attempt, Result: &r})
		return
	}
	st.conclude(&m, r.Outcome, &r)
}

// renewed keeps the lease of a living attempt. One that was given up but not
// yet tried again is taken up once more: better late than twice.
func (st *step) renewed(id string, attempt int) {
	known := st.mails[id]
	if known == nil {
		st.effect(Counted{UnknownMail})
		return
	}
	m := *known
	silent := slices.Index(m.Silent, attempt)
	switch {
	case attempt != m.Attempt:
		st.effect(Counted{OldAttempt})
		return
	case m.Status == Attempting:
	case m.Status == Waiting && silent >= 0:
		m.Silent = slices.Delete(slices.Clone(m.Silent), silent, silent+1)
		m.Status = Attempting
		m.Next = time.Time{}
	default:
		st.effect(Counted{OldAttempt})
		return
	}
	m.Lease = st.at.Add(st.Lease)
	st.keep(&m)
}

// conclude decides what becomes of m, which has no attempt under way any more:
// settled, kept for a late fact, or tried again. reason is that of the attempt
// that ended, 0 when none did.
func (st *step) conclude(m *Mail, reason Reason, result *Result) {
	final := st.final(m, reason)
	if reason != 0 {
		attempt := m.Attempt
		if result != nil {
			attempt = result.Attempt
		}
		settled := final == reason || final == Sent
		st.effect(Attempted{At: st.at, Mail: m, Reason: reason, Attempt: attempt, Result: result, Settled: settled})
	}
	switch final {
	case 0, reason, Sent: // said above, and Sent when its fact came
	default:
		st.effect(Attempted{At: st.at, Mail: m, Reason: final, Settled: true})
	}
	switch {
	case final == 0:
		if m.Status != Waiting { // a late fact leaves the retry where it is
			m.Status = Waiting
			m.Next = st.at.Add(st.backoff(m))
			m.Lease = time.Time{}
		}
		st.keep(m)
	case final == Uncertain && len(m.Silent) > 0 && !st.expired(m):
		m.Status = Unanswered
		m.Next, m.Lease = time.Time{}, time.Time{}
		st.keep(m)
	default:
		st.settle(m)
	}
}

// final is why nothing more is tried; 0 means that m is tried again.
func (st *step) final(m *Mail, reason Reason) Reason {
	switch {
	case m.Sent:
		return Sent
	case reason == Rejected:
		return Rejected
	case m.unsure() > st.UncertainRetries, m.unsure() > 0 && (m.Over || st.expired(m)):
		return Uncertain
	case m.Over:
		return Over
	case st.expired(m):
		return Expired
	}
	return 0
}

func (st *step) expired(m *Mail) bool { return !st.at.Before(m.Expire) }

// settle forgets m; its outage remembers whether it counts.
func (st *step) settle(m *Mail) {
	st.drop(m.Key())
	known := st.outages[m.Outage]
	if known == nil {
		return
	}
	i := slices.IndexFunc(known.Told, func(t Told) bool { return t.Mail == m.ID })
	if i < 0 {
		return
	}
	o := *known
	o.Told = slices.Clone(known.Told)
	o.Told[i].Status = ToldNo
	if m.mayHaveArrived() {
		o.Told[i].Status = ToldYes
	}
	st.keep(&o)
}

// backoff is the wait after m's last attempt: twice as long each time, spread
// by a quarter either way. The spread is a function of the mail and the
// attempt, so that mails that failed together do not return together, and a
// replay waits as long as the first time.
func (st *step) backoff(m *Mail) time.Duration {
	wait := st.BackoffFirst
	for i := 1; i < m.Attempt && wait < st.BackoffMost; i++ {
		wait *= 2
	}
	wait = min(wait, st.BackoffMost)
	spread := hash(fmt.Sprint(m.ID, m.Attempt)) % uint64(wait/2)
	return (wait*3/4 + time.Duration(spread)).Truncate(time.Millisecond)
}
