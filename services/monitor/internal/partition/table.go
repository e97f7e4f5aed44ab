package partition

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/monitor/internal/deadline"
	"github.com/tocsin/tocsin/services/monitor/internal/device"
)

// lagLimit is how long the state's record may lack a repeat (rule O3), in ms of
// the partition's clock.
const lagLimit = 60_000

// Table has the devices of one partition: a row each, their spans of motion,
// their deadlines, and what it takes to go back to the last Commit. It talks to
// nobody: records of the log go in, Notifications and changed rows come out. The
// monitor and the replay share it. It is not for several goroutines at once.
//
// Invariant: a row that is all zero belongs to no device, and a device has a
// deadline in the queue exactly while a hold is pending.
type Table struct {
	keys    keys
	rows    []row
	spans   spanStore
	queue   *deadline.Queue
	sets    settingSets
	clock   int64 // at least 1
	devices int   // rows that were heard of
	lagging lags

	// Since the last Commit or Abort.
	notifications []Notification
	counts        Counts
	dirty         []int32 // rows whose record is to be written
	undo          []undo
	undoSpans     []undoSpan
	oldSpans      []device.Span
	consumedGone  int
	oldClock      int64
	oldDevices    int

	gone []gone

	// Scratch.
	effects []device.Effect
	keyText []byte
	list    [device.MaxSpans]device.Span
	enc     encoder
}

// row is one device.
type row struct {
	state device.State
	spans spanRef
	// lag is the clock of the oldest repeat that the state's record lacks; 0 is
	// none.
	lag      int64
	settings uint32
	flags    flags
}

// heardOf is 1 for a device that sent something, 0 for one that was only set up.
func (r *row) heardOf() int {
	if r.state == (device.State{}) && r.spans.n == 0 {
		return 0
	}
	return 1
}

type flags uint8

const (
	touched flags = 1 << iota // its former value is in undo
	spansTouched
	isDirty
)

// undo is what a row was before the transaction touched it, its spans aside.
type undo struct {
	slot int32
	row  row
}

// undoSpan says where in oldSpans a row's spans are.
type undoSpan struct {
	slot     int32
	from, to int
}

// gone is a device that was deleted in the settings at a time.
type gone struct {
	key string
	at  int64
}

// Notification is a device.Notice with the names that the machine does not know.
type Notification struct {
	device.Notice
	Account, Device string
	// Region, Span and Score are of an alert.
	Region, Span string
	Score        float64
	// EventID is the event that caused it; empty where the clock did.
	EventID string
}

// ID is the notification's (rule H9).
func (n *Notification) ID() string {
	return device.NotificationID(n.Account, n.Device, n.Type, n.Since, n.Region, n.Span)
}

// OutageID is the outage's (rule H8), empty where there is none.
func (n *Notification) OutageID() string {
	switch {
	case n.InOutage:
		return device.OutageID(n.Account, n.Device, n.Outage)
	default:
		return ""
	}
}

// Counts is what the table has seen.
type Counts struct {
	Statuses, MotionSteps, Heartbeats, Others uint64
	Reasons                                   [device.Reasons]uint64
}

// NewTable makes an empty table. defaults are the holds of a device that nobody
// has set up (rule H1).
func NewTable(defaults device.Rules) *Table {
	t := &Table{keys: newKeys(), sets: newSettingSets(defaults), clock: 1, oldClock: 1}
	t.queue = deadline.New(t.keys.less)
	return t
}

// Devices is how many devices were heard of.
func (t *Table) Devices() int { return t.devices }

// Holds is how many holds are pending.
func (t *Table) Holds() int { return t.queue.Len() }

// Due is when something is next to be done without a record, in ms.
func (t *Table) Due() (at int64, ok bool) {
	if t.consumedGone < len(t.gone) {
		return t.clock, true
	}
	_, at, ok = t.queue.First()
	return at, ok
}

// Advance moves the clock, which never goes back, and fires every deadline up
// to it in the order of rule T3.
func (t *Table) Advance(clock int64) {
	t.clock = max(t.clock, clock)
	for _, g := range t.gone[t.consumedGone:] {
		t.forget(g)
	}
	t.consumedGone = len(t.gone)
	for l, ok := t.lagging.pop(t.clock - lagLimit); ok; l, ok = t.lagging.pop(t.clock - lagLimit) {
		if t.rows[l.slot].lag == l.since {
			t.touch(l.slot)
			t.markDirty(l.slot)
		}
	}
	for {
		slot, at, ok := t.queue.First()
		if !ok || at > t.clock {
			return
		}
		t.step(slot, nil, device.Input{Kind: device.Wake, At: t.clock})
	}
}

// Event takes one event, which codec has validated, appended at the table's
// clock or, where it is later, at clock. trace is the context it came with.
func (t *Table) Event(ev *eventv1.DeviceEvent, trace device.Trace, clock int64) {
	t.clock = max(t.clock, clock)
	original, _ := codec.UnixMilli(ev.ReceiveTime)
	said, _ := codec.UnixMilli(ev.OccurTime)
	in := device.Input{At: t.clock, Trace: trace}
	in.Receive = device.ReceiveTime(original, t.clock, ev.Spooled || ev.Restated)
	occur, corrected := device.OccurTime(said, in.Receive)
	in.Occur, in.Corrected = occur, corrected || ev.TimeCorrected

	t.keyText = append(append(append(t.keyText[:0], ev.AccountId...), '/'), ev.DeviceId...)
	slot := t.keys.find(t.keyText)
	set := &t.sets.sets[0]
	if slot >= 0 {
		set = &t.sets.sets[t.rows[slot].settings]
	}
	switch kind := ev.Kind.(type) {
	case *eventv1.DeviceEvent_Status:
		t.counts.Statuses++
		in.Kind = device.Status
		in.Reading = reading(kind.Status, set.bridge)
		in.Run = device.RunOf(ev.SourceId, ev.SourceEpoch)
		in.Sequence = ev.Sequence
	case *eventv1.DeviceEvent_Motion:
		t.counts.MotionSteps++
		if kind.Motion.Phase != eventv1.Motion_START {
			return // rule M1
		}
		in.Kind = device.MotionStart
		in.Span = device.NewSpan(device.SpanOf(kind.Motion.RegionId, kind.Motion.SpanId, in.Occur), in.Occur)
		in.Disabled = set.disables(kind.Motion.RegionId)
		if slot >= 0 {
			in.Spans = t.spans.get(t.rows[slot].spans)
		}
	case *eventv1.DeviceEvent_Heartbeat:
		t.counts.Heartbeats++
		return
	default:
		t.counts.Others++
		return
	}
	if corrected { // what the archiver corrected it has counted
		t.counts.Reasons[device.TimeCorrected]++
	}
	t.step(slot, ev, in)
}

// reading is rules S1 and S3.
func reading(s *eventv1.Status, bridge bool) device.Reading {
	switch s.State {
	case eventv1.Status_ONLINE, eventv1.Status_OFFLINE, eventv1.Status_INTERNET_OFFLINE, eventv1.Status_OFF:
		return device.Reading{Condition: device.Condition(s.State)}
	case eventv1.Status_UNKNOWN:
		if s.UnknownState == "" {
			return device.Read(s.Bits, bridge || s.Kind == eventv1.Status_BRIDGE)
		}
	}
	return device.Reading{Why: device.StatusUnknown}
}

// step runs the machine of the device at slot; -1 is the one of keyText, which
// is not known yet. ev is nil where the clock or the settings are the cause.
func (t *Table) step(slot int32, ev *eventv1.DeviceEvent, in device.Input) {
	var before device.State
	rules := &t.sets.sets[0].rules
	if slot >= 0 {
		before = t.rows[slot].state
		rules = &t.sets.sets[t.rows[slot].settings].rules
	}
	var next device.State
	next, t.effects = rules.Step(before, in, t.effects[:0])
	if next != before {
		slot = t.change(slot, ev, &before, &next)
	}
	for i := range t.effects {
		switch e := &t.effects[i]; e.Kind {
		case device.Count:
			t.counts.Reasons[e.Why]++
		case device.Remember:
			slot = t.known(slot, ev)
			t.remember(slot, e.Span)
		case device.Notify:
			t.notify(slot, ev, &e.Notice)
		}
	}
}

// change puts the new state into the row.
func (t *Table) change(slot int32, ev *eventv1.DeviceEvent, before, next *device.State) int32 {
	slot = t.known(slot, ev)
	t.touch(slot)
	t.setState(slot, next)
	r := &t.rows[slot]
	if repeats(before, next) {
		if r.lag == 0 && r.flags&isDirty == 0 {
			r.lag = t.clock
			t.lagging.push(lag{slot: slot, since: t.clock})
		}
	} else {
		t.markDirty(slot)
	}
	t.schedule(slot)
	return slot
}

// repeats tells whether the step only took note of a repeat of the same state
// from the same run, which may be written later (rule O3).
func repeats(before, next *device.State) bool {
	if next.Last.Run == 0 || next.Last.Run != before.Last.Run || next.Last.Condition != before.Last.Condition {
		return false
	}
	rest := *next
	rest.Last = before.Last
	return rest == *before
}

func (t *Table) schedule(slot int32) {
	if at, ok := t.rows[slot].state.Due(); ok {
		t.queue.Set(slot, at)
	} else {
		t.queue.Remove(slot)
	}
}

// known is slot, or a new one for the event's device.
func (t *Table) known(slot int32, ev *eventv1.DeviceEvent) int32 {
	if slot >= 0 {
		return slot
	}
	return t.add(t.keyText, len(ev.AccountId))
}

func (t *Table) add(key []byte, slash int) int32 {
	slot := t.keys.add(key, slash)
	if int(slot) == len(t.rows) {
		t.rows = append(t.rows, row{})
	}
	return slot
}

func (t *Table) touch(slot int32) {
	r := &t.rows[slot]
	if r.flags&touched == 0 {
		t.undo = append(t.undo, undo{slot, *r})
		r.flags |= touched
	}
}

func (t *Table) markDirty(slot int32) {
	r := &t.rows[slot]
	r.lag = 0
	if r.flags&isDirty == 0 {
		r.flags |= isDirty
		t.dirty = append(t.dirty, slot)
	}
}

func (t *Table) remember(slot int32, span device.Span) {
	t.touchSpans(slot)
	t.markDirty(slot)
	list := t.list[:copy(t.list[:], t.spans.get(t.rows[slot].spans))]
	t.setSpans(slot, device.Remembered(list, span))
}

// setState and setSpans keep count of the devices that were heard of.
func (t *Table) setState(slot int32, s *device.State) {
	r := &t.rows[slot]
	t.devices -= r.heardOf()
	r.state = *s
	t.devices += r.heardOf()
}

func (t *Table) setSpans(slot int32, list []device.Span) {
	r := &t.rows[slot]
	t.devices -= r.heardOf()
	r.spans = t.spans.put(r.spans, list)
	t.devices += r.heardOf()
}

func (t *Table) touchSpans(slot int32) {
	t.touch(slot)
	r := &t.rows[slot]
	if r.flags&spansTouched == 0 {
		r.flags |= spansTouched
		from := len(t.oldSpans)
		t.oldSpans = append(t.oldSpans, t.spans.get(r.spans)...)
		t.undoSpans = append(t.undoSpans, undoSpan{slot, from, len(t.oldSpans)})
	}
}

func (t *Table) notify(slot int32, ev *eventv1.DeviceEvent, n *device.Notice) {
	out := Notification{Notice: *n}
	out.Account, out.Device = t.keys.names(slot)
	if ev != nil {
		out.EventID = ev.EventId
		if n.Type == device.Alert {
			m := ev.GetMotion()
			out.Region, out.Span, out.Score = m.RegionId, m.SpanId, m.Score
		}
	}
	t.notifications = append(t.notifications, out)
}

// forget takes a deleted device out, unless it was heard of since.
func (t *Table) forget(g gone) {
	slot := t.keys.find([]byte(g.key))
	if slot < 0 || t.heard(slot) > g.at {
		return
	}
	t.step(slot, nil, device.Input{Kind: device.Forget, At: t.clock})
	t.touchSpans(slot)
	t.markDirty(slot)
	t.setSpans(slot, nil)
}

// heard is when the device at slot was last heard of, for all the row tells.
func (t *Table) heard(slot int32) int64 {
	r := &t.rows[slot]
	heard := max(r.state.Last.Receive, r.state.Candidate.Started)
	for _, s := range t.spans.get(r.spans) {
		heard = max(heard, s.Occur())
	}
	return heard
}

// Notifications are those since the last Commit or Abort, in log order.
func (t *Table) Notifications() []Notification { return t.notifications }

// Counts are those since the last Commit or Abort.
func (t *Table) Counts() *Counts { return &t.counts }

// Changed calls write for each device whose record is to be written, in the
// order in which they first changed. A nil value is a tombstone; key is good
// only for the call.
func (t *Table) Changed(write func(key, value []byte)) {
	for _, slot := range t.dirty {
		r := &t.rows[slot]
		write(t.keys.key(slot), t.enc.encode(&r.state, t.spans.get(r.spans)))
	}
}

// Commit keeps all that was done.
func (t *Table) Commit() {
	for i := range t.undo {
		t.rows[t.undo[i].slot].flags = 0
	}
	t.gone = slices.Delete(t.gone, 0, t.consumedGone)
	t.oldClock, t.oldDevices = t.clock, t.devices
	t.lagging.commit()
	t.settle()
}

// Abort takes back all that was done since the last Commit, the clock included:
// the records come again.
func (t *Table) Abort() {
	for _, u := range t.undoSpans {
		r := &t.rows[u.slot]
		r.spans = t.spans.put(r.spans, t.oldSpans[u.from:u.to])
	}
	for _, u := range t.undo {
		u.row.spans = t.rows[u.slot].spans
		t.rows[u.slot] = u.row
		t.schedule(u.slot)
	}
	t.clock, t.devices = t.oldClock, t.oldDevices
	t.lagging.abort()
	t.settle()
}

// settle drops the rows that are empty now, and clears the transaction.
func (t *Table) settle() {
	for _, u := range t.undo {
		t.drop(u.slot)
	}
	t.notifications = t.notifications[:0]
	t.counts = Counts{}
	t.dirty = t.dirty[:0]
	t.undo = t.undo[:0]
	t.undoSpans = t.undoSpans[:0]
	t.oldSpans = t.oldSpans[:0]
	t.consumedGone = 0
}

// drop frees slot if nothing is known of its device.
func (t *Table) drop(slot int32) bool {
	r := &t.rows[slot]
	if r.state != (device.State{}) || r.spans != (spanRef{}) || r.settings != 0 {
		return false
	}
	*r = row{}
	t.keys.remove(slot)
	return true
}

// Restore takes the state of one device; a nil value is a tombstone. It checks
// the bytes, and changes nothing when it returns an error.
func (t *Table) Restore(key, value []byte) error {
	slash, err := checkKey(key)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	slot := t.keys.find(key)
	var state device.State
	var spans []device.Span
	if value != nil {
		if state, spans, err = decode(value); err != nil {
			return fmt.Errorf("state of %s: %w", key, err)
		}
	} else if slot < 0 {
		return nil
	}
	if slot < 0 {
		slot = t.add(key, slash)
	}
	t.setState(slot, &state)
	t.setSpans(slot, spans)
	t.oldDevices = t.devices
	t.schedule(slot)
	t.drop(slot)
	return nil
}

// Setting takes what is set for one device; nil is a tombstone, written at an
// instant: the device is gone, and what was known of it is forgotten at the
// next Advance unless it was heard of later. Running holds keep their deadlines
// (rule H10). It must not come between a step and its Commit or Abort, and
// changes nothing when it returns an error.
func (t *Table) Setting(key []byte, s *settingsv1.DeviceSettings, written int64) error {
	slash, err := checkKey(key)
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	slot := t.keys.find(key)
	if s == nil {
		if slot >= 0 {
			t.sets.release(t.rows[slot].settings)
			t.rows[slot].settings = 0
			if !t.drop(slot) {
				t.gone = append(t.gone, gone{string(key), written})
			}
		}
		return nil
	}
	if string(key) != codec.DeviceKey(s.AccountId, s.DeviceId) {
		return fmt.Errorf("settings of %s: they are for %s/%s", key, s.AccountId, s.DeviceId)
	}
	set, err := readSettings(s, t.sets.sets[0].rules)
	if err != nil {
		return fmt.Errorf("settings of %s: %w", key, err)
	}
	if slot < 0 {
		slot = t.add(key, slash)
	}
	n := t.sets.use(set)
	t.sets.release(t.rows[slot].settings)
	t.rows[slot].settings = n
	return nil
}

var errKey = errors.New("the key is not account/device")

func checkKey(key []byte) (slash int, err error) {
	if _, _, ok := codec.SplitKey(string(key)); !ok {
		return 0, errKey
	}
	return bytes.IndexByte(key, '/'), nil
}
