// Package recent remembers which events were taken lately, so that a caller
// who repeats a request after a cut reply has one effect. It is the first line
// of that only: a process that restarts forgets, and the monitor knows doubles
// by itself (rules O2, M2).
//
// It has no lock and no clock.
package recent

import (
	"encoding/binary"
	"hash/maphash"
)

// Window remembers at least the last n events, at most twice as many, at about
// 60 bytes each. Not safe for concurrent use.
type Window struct {
	n        int
	seed     [2]maphash.Seed
	new, old Set
	buf      []byte
}

// id stands for a device and an event id. Two that differ are taken for one
// another about never: it is 128 bits of a keyed hash.
type id struct{ a, b uint64 }

// New makes a window of n events; 0 remembers nothing.
func New(n int) *Window {
	return &Window{n: n, seed: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, new: Set{}}
}

// Mark stands for one event: which it is, and what it says.
type Mark struct {
	id      id
	content uint64
}

// Mark makes the mark of an event of a device. An id alone does not make a
// double: a source that starts its numbers anew, or gives every event the same
// id, says something else under it.
func (w *Window) Mark(deviceKey, eventID string, content []byte) Mark {
	w.buf = binary.AppendUvarint(w.buf[:0], uint64(len(deviceKey)))
	w.buf = append(w.buf, deviceKey...)
	w.buf = append(w.buf, eventID...)
	return Mark{
		id:      id{maphash.Bytes(w.seed[0], w.buf), maphash.Bytes(w.seed[1], w.buf)},
		content: maphash.Bytes(w.seed[0], content),
	}
}

// Set remembers all events that were added to it.
type Set map[id]uint64

// Has is like Window's.
func (s Set) Has(m Mark) bool {
	content, ok := s[m.id]
	return ok && content == m.content
}

// Add is like Window's.
func (s Set) Add(m Mark) { s[m.id] = m.content }

// Has says whether the last event of this id was this very event.
func (w *Window) Has(m Mark) bool {
	if _, newer := w.new[m.id]; newer {
		return w.new.Has(m)
	}
	return w.old.Has(m)
}

// Add remembers an event. It must be in Kafka.
func (w *Window) Add(m Mark) {
	if w.n == 0 {
		return
	}
	if len(w.new) >= w.n {
		w.old, w.new = w.new, make(Set, w.n)
	}
	w.new.Add(m)
}
