// Package known remembers the last status of each device that an archiver
// passed on: to fold event codes into it (rule S2), to drop a status that says
// nothing new where the archiver alone speaks for the device, and to send each
// again now and then (rule L1).
//
// It does no I/O, has no clock and no lock: the caller says what time it is
// and lets nobody in beside it. Nothing of it outlives the process; a new one
// passes on the first status of each device and knows it from then on.
//
// Invariant: Step answers Drop only for a status that is in Kafka already, as
// the newest the archiver knows of the device.
package known

import (
	"time"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
)

// Config says how a table works.
type Config struct {
	// Most is how many devices are remembered, about: the table is divided into
	// slots of equal size. One more makes its slot forget the device that was
	// not heard of for longest; that device's next status passes as its first.
	Most int
	// Slots is the number of parts that Restate goes through.
	Slots int
	// Drop says that a status equal to the last is not to be sent.
	Drop bool
}

// Table is the memory. Not safe for concurrent use.
type Table struct {
	cfg   Config
	slots []map[string]*entry
	size  int
}

// New makes an empty table.
func New(cfg Config) *Table {
	cfg.Slots = max(cfg.Slots, 1)
	return &Table{cfg: cfg, slots: make([]map[string]*entry, cfg.Slots)}
}

// entry is what is known of one device, about 250 bytes with its key.
type entry struct {
	status status
	// The newest sample: where it stands in its source's run, and when it was.
	source, epoch string
	sequence      uint64
	occur         int64
	// version counts the samples that were sent on; sure says that the one of
	// this version is in Kafka.
	version uint64
	sure    bool
	// value is the last sample in Kafka, encoded; received is when it came.
	value    []byte
	received int64
	heard    int64
}

// status is what two samples have in common when they say the same.
type status struct {
	bits  uint32
	kind  eventv1.Status_Kind
	state eventv1.Status_State
}

// bitInvalid marks a sample that says nothing (rule S1).
const bitInvalid = 1 << 16

// of is a sample's status; false when it changes nothing wherever it comes
// (rule S1).
func of(s *eventv1.Status) (status, bool) {
	if s.State != eventv1.Status_UNKNOWN {
		return status{kind: s.Kind, state: s.State}, true
	}
	if s.UnknownState != "" || s.Bits == 0 || s.Bits&bitInvalid != 0 {
		return status{}, false
	}
	return status{bits: s.Bits, kind: s.Kind}, true
}

// Len is the number of devices remembered.
func (t *Table) Len() int { return t.size }

// Slots is the number of parts, as it was configured.
func (t *Table) Slots() int { return len(t.slots) }

// slot is where a key lives: FNV-1a, so that a device keeps its place, and its
// minute of the refresh, over restarts.
func (t *Table) slot(key string) int {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return int(h % uint64(len(t.slots)))
}

// Fold turns an event code into a status (rule S2): the bits last known of the
// device with setBits set and clearBits cleared; without any, the state alone. False:
// the code says nothing.
func (t *Table) Fold(key string, setBits, clearBits uint32, alone eventv1.Status_State) (*eventv1.Status, bool) {
	if e := t.slots[t.slot(key)][key]; e != nil && e.status.state == eventv1.Status_UNKNOWN {
		return &eventv1.Status{Bits: e.status.bits&^clearBits | setBits, Kind: e.status.kind}, true
	}
	if alone == eventv1.Status_UNKNOWN {
		return nil, false
	}
	return &eventv1.Status{State: alone}, true
}

// Verdict is what is to become of a status.
type Verdict struct {
	// Drop: it is in Kafka already; say so to the caller and send nothing.
	Drop bool
	// Changed: it differs from the last one known, or there was none.
	Changed bool
	// Version is for Sent; 0 when the sample is not remembered.
	Version uint64
}

// Step takes a status that is about to be sent. A sample older than the newest
// one known, and one that says nothing, is passed on and forgotten.
func (t *Table) Step(key string, ev *eventv1.DeviceEvent, now time.Time) Verdict {
	st, ok := of(ev.GetStatus())
	if !ok {
		return Verdict{}
	}
	i := t.slot(key)
	e := t.slots[i][key]
	occur, dated := codec.UnixMilli(ev.OccurTime)
	if !dated || occur > now.UnixMilli() {
		// A wrong clock must not make all that follows look old (rule T2).
		occur = now.UnixMilli()
	}
	if e == nil {
		e = t.add(i, key)
	} else {
		e.heard = now.UnixMilli()
		if e.newerThan(ev, occur) {
			return Verdict{Changed: st != e.status}
		}
		if t.cfg.Drop && e.sure && st == e.status && !ev.Spooled && !ev.Restated {
			e.source, e.epoch, e.sequence, e.occur = ev.SourceId, ev.SourceEpoch, ev.Sequence, occur
			return Verdict{Drop: true}
		}
	}
	changed := e.version == 0 || st != e.status
	e.status = st
	e.source, e.epoch, e.sequence, e.occur = ev.SourceId, ev.SourceEpoch, ev.Sequence, occur
	e.heard = now.UnixMilli()
	e.version++
	e.sure = false
	return Verdict{Changed: changed, Version: e.version}
}

// newerThan says that a sample is older than the one known: by its place in
// the same run, else by its time. It need not be as wise as rule O1: what it
// gets wrong is passed on, and judged by the monitor.
func (e *entry) newerThan(ev *eventv1.DeviceEvent, occur int64) bool {
	named := ev.SourceId != "" && ev.SourceEpoch != "" && ev.Sequence > 0 && e.sequence > 0
	if named && e.source == ev.SourceId && e.epoch == ev.SourceEpoch {
		return ev.Sequence < e.sequence
	}
	return occur < e.occur
}

// add makes room for a device.
func (t *Table) add(i int, key string) *entry {
	if t.slots[i] == nil {
		t.slots[i] = make(map[string]*entry)
	}
	slot := t.slots[i]
	if len(slot) >= max((t.cfg.Most+len(t.slots)-1)/len(t.slots), 1) {
		oldest, heard := "", int64(0)
		for k, e := range slot {
			if oldest == "" || e.heard < heard || e.heard == heard && k < oldest {
				oldest, heard = k, e.heard
			}
		}
		delete(slot, oldest)
		t.size--
	}
	e := &entry{}
	slot[key] = e
	t.size++
	return e
}

// Sent says that the sample of a version is in Kafka as value, received when
// the archiver's clock said received. A version that was overtaken, or whose
// device was forgotten meanwhile, is none of interest.
func (t *Table) Sent(key string, version uint64, value []byte, received time.Time) {
	e := t.slots[t.slot(key)][key]
	if e == nil || e.version != version || version == 0 {
		return
	}
	e.sure, e.value, e.received = true, value, received.UnixMilli()
}

// Restatement is a status that is to be sent again.
type Restatement struct {
	Key string
	// Event is marked restated; run, sequence and times are the original ones.
	Event *eventv1.DeviceEvent
}

// Restate lists the statuses known in one slot, from 0 to Slots()-1.
func (t *Table) Restate(slot int) []Restatement {
	var all []Restatement
	for key, e := range t.slots[slot] {
		if e.value == nil {
			continue
		}
		ev, err := codec.DecodeEvent(e.value)
		if err != nil {
			// It was encoded from a valid event; see Sent.
			panic("known: a remembered status cannot be read: " + err.Error())
		}
		if ev.ReceiveTime == nil {
			ev.ReceiveTime = codec.Timestamp(e.received)
		}
		if ev.OccurTime == nil {
			// The reader puts the time of receipt there (rule T2): now as then.
			ev.OccurTime, ev.TimeCorrected = ev.ReceiveTime, true
		}
		ev.Restated = true
		all = append(all, Restatement{Key: key, Event: ev})
	}
	return all
}
