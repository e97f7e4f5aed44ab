package account

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tocsin/tocsin/services/gateway/internal/schedule"
)

// crowd is an account with one of everybody.
func crowd() *Settings {
	user := func(id string, change func(*User)) User {
		u := User{ID: id, Address: id + "@acme.test", Enabled: true, Admin: true, Levels: Low | High | System, Windows: schedule.Always()}
		change(&u)
		return u
	}
	return &Settings{
		Known: true, Active: true, StatusMails: true,
		Devices: map[string]Device{"d0": {Name: "Front", Site: "s"}},
		Sites:   map[string]string{"s": "Main street"},
		Users: []User{
			user("ann", func(*User) {}),
			user("bob", func(*User) {}),
			user("cid", func(u *User) { u.Windows = nil }),
			user("dan", func(u *User) { u.Enabled = false }),
			user("eve", func(u *User) { u.Admin = false }),
		},
	}
}

// history turns bytes into inputs that a log may hold: clocks go on, results
// and renewals are about attempts that began (sometimes old or unknown ones),
// a device's notifications are of few devices and outages, so that they meet.
type history struct {
	data   []byte
	driver *driver
	at     time.Time
	offset int64
	begun  []Begun
	outage [3]int
	serial int
}

func (h *history) byte() int {
	if len(h.data) == 0 {
		return 0
	}
	b := h.data[0]
	h.data = h.data[1:]
	return int(b)
}

// next is the next input to feed; ok is false at the end.
func (h *history) next() (at time.Time, in Input, ok bool) {
	if len(h.data) == 0 {
		return h.at, nil, false
	}
	op := h.byte()
	h.at = h.at.Add([]time.Duration{
		0, 0, time.Millisecond, 100 * time.Millisecond, 5 * time.Second, 20 * time.Second, 61 * time.Second, time.Hour,
	}[op>>5])
	switch op & 31 {
	case 0, 1, 2, 3, 4, 5:
		return h.at, h.notified(), true
	case 6, 7, 8, 9, 10, 11, 12:
		return h.at, Decide{At: h.at, Trace: "t"}, true
	case 13, 14:
		if b, ok := h.attempt(); ok {
			return h.at, Renewed{At: h.at, Mail: b.Mail.ID, Attempt: b.Mail.Attempt}, true
		}
	case 15:
		return h.at, Ended{At: h.at, Result: Result{Mail: "no such", Attempt: 1, Outcome: Sent}}, true
	case 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26:
		if b, ok := h.attempt(); ok {
			outcome := []Reason{Sent, Sent, Rejected, Retrying, Retrying, Uncertain}[h.byte()%6]
			return h.at, Ended{At: h.at, Result: Result{Mail: b.Mail.ID, Attempt: b.Mail.Attempt, Outcome: outcome}}, true
		}
	case 27:
		h.driver.set.Users[0].Enabled = !h.driver.set.Users[0].Enabled
	case 28:
		h.driver.set.Known = h.byte()%4 != 0
	}
	return h.at, nil, true
}

// attempt is one of the last few that began.
func (h *history) attempt() (Begun, bool) {
	if len(h.begun) == 0 {
		return Begun{}, false
	}
	back := h.byte() % min(len(h.begun), 6)
	return h.begun[len(h.begun)-1-back], true
}

func (h *history) notified() Input {
	h.offset++
	b := h.byte()
	device := b & 3 % 3
	n := &Notification{Device: fmt.Sprint("d", device), Stage: Due, Since: h.at}
	switch b >> 2 & 7 {
	case 0:
		n.Type = Alert
		n.Since = h.at.Add(-time.Duration(h.byte()) * 10 * time.Second)
	case 1, 2:
		n.Type = Offline
		h.outage[device]++
	case 3:
		n.Type = InternetOffline
	case 4:
		n.Type, n.Stage = Offline, Pending
	default:
		n.Type = Online
	}
	if n.Type != Alert {
		n.Outage = fmt.Sprint(n.Device, "/", h.outage[device])
	}
	if b>>5 != 0 { // else the id of the one before again
		h.serial++
	}
	n.ID = fmt.Sprint("n", h.serial)
	return Notified{At: h.at, Offset: h.offset, Notification: n}
}

// play feeds a history and calls each after every step of the machine.
func play(data []byte, each func(d *driver, in Input, effects []Effect)) *driver {
	d := newDriver(crowd())
	d.room = 3
	h := &history{data: data, driver: d, at: start}
	d.between = func(in Input, effects []Effect) {
		for _, e := range effects {
			if b, ok := e.(Begun); ok {
				h.begun = append(h.begun, b)
			}
		}
		if each != nil {
			each(d, in, effects)
		}
	}
	for {
		at, in, ok := h.next()
		if !ok {
			return d
		}
		d.feed(at, in)
	}
}

func histories(t *testing.T, n int, f func(t *testing.T, data []byte)) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for range n {
		data := make([]byte, 40+random.IntN(400))
		for i := range data {
			data[i] = byte(random.UintN(256))
		}
		f(t, data)
		if t.Failed() {
			t.Fatalf("history %x", data)
		}
	}
}

func checkRestore(t *testing.T, data []byte) {
	play(data, func(d *driver, in Input, _ []Effect) {
		again := restored(parts(d.state))
		if diff := differ(derive(d.state), derive(again)); diff != "" {
			t.Errorf("after %T the restored state is another (-lived +restored):\n%s", in, diff)
		}
		d.state = again // and go on with that one
	})
}

// Proves that a snapshot anywhere and the rest is the whole: what is derived
// from restored parts is what was derived on the way, and a life restored
// after each step has the same effects as an undisturbed one.
func TestSnapshotAnywhere(t *testing.T) {
	histories(t, 60, func(t *testing.T, data []byte) {
		checkRestore(t, data)
		var whole, broken []string
		play(data, func(_ *driver, _ Input, effects []Effect) { whole = append(whole, said(effects)...) })
		play(data, func(d *driver, _ Input, effects []Effect) {
			broken = append(broken, said(effects)...)
			d.state = restored(parts(d.state))
		})
		if diff := cmp.Diff(whole, broken); diff != "" {
			t.Errorf("effects differ (-whole +restored after each step):\n%s", diff)
		}
	})
}

// differ is cmp.Diff, asked only when there is something to show.
func differ(x, y any) string {
	if reflect.DeepEqual(x, y) {
		return ""
	}
	return cmp.Diff(x, y)
}

// said is effects in words, parts left out.
func said(effects []Effect) []string {
	var lines []string
	for _, e := range effects {
		switch e := e.(type) {
		case Decided:
			lines = append(lines, fmt.Sprint("decided ", e.Notification.ID, e.At.UnixMilli(), e.Further, e.Outcomes))
		case Begun:
			lines = append(lines, fmt.Sprint("begun ", e.Mail.ID, e.Mail.Attempt, e.Mail.Lease.UnixMilli(), e.Mail.References))
		case Attempted:
			lines = append(lines, fmt.Sprint("attempted ", e.Mail.ID, e.Attempt, e.Reason, e.Settled))
		case Counted:
			lines = append(lines, "counted "+string(e.Why))
		}
	}
	return lines
}

func checkUndo(t *testing.T, data []byte) {
	type kept struct {
		Parts   []Part
		Derived derived
	}
	var before kept
	d := newDriver(crowd())
	h := &history{data: data, driver: d, at: start}
	var since []Effect
	d.between = func(_ Input, effects []Effect) { since = append(since, effects...) }
	for i := 0; ; i++ {
		if i%3 == 0 {
			since = nil
			before = kept{parts(d.state), derive(restored(parts(d.state)))}
		}
		at, in, ok := h.next()
		if !ok {
			return
		}
		d.feed(at, in)
		for _, e := range since {
			if b, ok := e.(Begun); ok && !slices.Contains(h.begun, b) {
				h.begun = append(h.begun, b)
			}
		}
		if i%3 == 2 {
			after := parts(d.state)
			undo(d.state, since)
			if diff := differ(before, kept{parts(d.state), derive(d.state)}); diff != "" {
				t.Errorf("undone steps left a trace (-before +undone):\n%s", diff)
				return
			}
			d.state = restored(after)
		}
	}
}

// Proves that three records undone leave no trace, neither in the parts nor in
// what is derived from them.
func TestUndo(t *testing.T) {
	histories(t, 60, checkUndo)
}

// Proves that the same record twice has one effect: the second changes nothing.
func TestTwiceIsOnce(t *testing.T) {
	histories(t, 60, func(t *testing.T, data []byte) {
		play(data, func(d *driver, in Input, _ []Effect) {
			switch in.(type) {
			case Notified, Ended, Renewed:
			default:
				return
			}
			once := parts(d.state)
			for _, e := range d.rules.Step(d.state, d.set, in) {
				switch e.(type) {
				case Changed, Counted:
				default:
					t.Errorf("%T again: %T %+v", in, e, e)
				}
			}
			if diff := differ(once, parts(d.state)); diff != "" {
				t.Errorf("%T again (-once +twice):\n%s", in, diff)
			}
		})
	})
}

// promises is a second look at a life from outside, by its effects alone.
type promises struct {
	decided map[string]map[string]Reason // notification -> user -> outcome
	flying  map[string]int               // mail -> attempt under way
	tried   map[string]int
	settled map[string]bool
	maybe   map[string]map[int]bool // mail -> attempts that may have arrived
	mails   map[string]*Mail
}

func newPromises() *promises {
	return &promises{
		map[string]map[string]Reason{}, map[string]int{}, map[string]int{}, map[string]bool{},
		map[string]map[int]bool{}, map[string]*Mail{},
	}
}

func (p *promises) see(d *driver, in Input, effects []Effect) error {
	for _, e := range effects {
		switch e := e.(type) {
		case Decided:
			if _, ok := in.(Decide); !ok {
				return fmt.Errorf("decided on %T (G0)", in)
			}
			if err := p.sawDecision(e); err != nil {
				return err
			}
		case Begun:
			m := e.Mail
			switch {
			case p.flying[m.ID] != 0:
				return fmt.Errorf("mail %s tried while attempt %d is under way", m.ID, p.flying[m.ID])
			case p.settled[m.ID]:
				return fmt.Errorf("mail %s tried after it was settled", m.ID)
			case m.Attempt != p.tried[m.ID]+1:
				return fmt.Errorf("mail %s: attempt %d after %d", m.ID, m.Attempt, p.tried[m.ID])
			case p.mails[m.ID] != nil && (p.mails[m.ID].MessageID != m.MessageID || !p.mails[m.ID].Date.Equal(m.Date)):
				return fmt.Errorf("mail %s: another Message-ID or Date", m.ID)
			}
			p.flying[m.ID], p.tried[m.ID], p.mails[m.ID] = m.Attempt, m.Attempt, m
		case Attempted:
			id := e.Mail.ID
			if e.Attempt != 0 && e.Attempt == p.flying[id] {
				delete(p.flying, id)
			}
			if e.Reason == Over && len(p.maybe[id]) > 0 {
				return fmt.Errorf("mail %s is over, but may have arrived", id)
			}
			if e.Attempt != 0 {
				p.hear(id, e.Attempt, e.Reason == Sent || e.Reason == Uncertain)
			}
			p.settled[id] = e.Settled
		}
	}
	if r, ok := in.(Renewed); ok && len(effects) > 0 {
		if _, ok := effects[0].(Changed); ok { // it is alive, whatever was said
			p.flying[r.Mail] = r.Attempt
			p.hear(r.Mail, r.Attempt, false)
		}
	}
	if len(p.flying) != d.state.Flying() {
		return fmt.Errorf("%d attempts under way, by the effects %d", d.state.Flying(), len(p.flying))
	}
	return nil
}

// hear notes whether an attempt may have arrived, by the last that is known of it.
func (p *promises) hear(mail string, attempt int, maybe bool) {
	if p.maybe[mail] == nil {
		p.maybe[mail] = map[int]bool{}
	}
	delete(p.maybe[mail], attempt)
	if maybe {
		p.maybe[mail][attempt] = true
	}
}

func (p *promises) sawDecision(e Decided) error {
	n := e.Notification
	first := p.decided[n.ID] == nil
	if first == e.Further {
		return fmt.Errorf("%s: further is %v", n.ID, e.Further)
	}
	if first {
		p.decided[n.ID] = map[string]Reason{}
	}
	for _, o := range e.Outcomes {
		if !slices.IsSorted(o.Users) {
			return fmt.Errorf("%s: users %v", n.ID, o.Users)
		}
		for _, u := range o.Users {
			if was, ok := p.decided[n.ID][u]; ok {
				return fmt.Errorf("%s for %s: %s, was %s", n.ID, u, o.Reason, was)
			}
			p.decided[n.ID][u] = o.Reason
			if o.Reason == Mailed && n.Type == Online {
				if !p.mayKnow(n.Outage, u) {
					return fmt.Errorf("%s is told of a recovery from %s, of which nothing was sent", u, n.Outage)
				}
			}
		}
	}
	return nil
}

// mayKnow: some attempt to tell u of the outage may have arrived.
func (p *promises) mayKnow(outage, u string) bool {
	for id, m := range p.mails {
		if m.Outage == outage && m.User == u && m.Type != Online && len(p.maybe[id]) > 0 {
			return true
		}
	}
	return false
}

func checkPromises(t *testing.T, data []byte) {
	p := newPromises()
	d := play(data, func(d *driver, in Input, effects []Effect) {
		if err := p.see(d, in, effects); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	// In the end a tick decides all that awaits no attempt, and a day and a
	// bit settle all mails.
	d.between = nil
	end := start.Add(1000 * 24 * time.Hour)
	for range 20 {
		d.feed(end, Decide{At: end})
		end = end.Add(25 * time.Hour)
	}
	if n := len(d.state.undecided) + len(d.state.mails) + d.state.Flying() + len(d.state.recoveries); n != 0 {
		t.Errorf("in the end there are %d undecided, %d mails, %d under way", len(d.state.undecided), len(d.state.mails), d.state.Flying())
	}
	for id, o := range d.state.outages {
		if o.Ended {
			t.Errorf("outage %s has ended and is remembered", id)
		}
	}
}

// Proves, over random lives, what people are promised: no recovery without a
// sent outage, each recipient of a notification decided once, on a tick; one
// attempt of a mail at a time, none after it was settled, all with one
// Message-ID; nothing that waits for ever.
func TestPromises(t *testing.T) {
	histories(t, 200, checkPromises)
}

// Proves the same of whatever bytes the fuzzer finds.
func FuzzLife(f *testing.F) {
	f.Add([]byte{0, 0x24, 6, 16, 0, 0, 0x34, 6, 16, 0})
	f.Add([]byte{0, 0x24, 6, 0xd0, 6, 0xd0, 1, 0x3c, 7, 7, 18, 3, 200})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 600 {
			return
		}
		checkPromises(t, data)
		checkRestore(t, data)
		checkUndo(t, data)
	})
}
