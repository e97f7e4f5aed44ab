package partition

import (
	"fmt"

	"github.com/tocsin/tocsin/services/monitor/internal/device"
)

// Everything is the record of each device's state, lagging or not.
func (t *Table) Everything() map[string][]byte {
	all := map[string][]byte{}
	for slot := range t.rows {
		if t.keys.refs[slot].length == 0 {
			continue
		}
		r := &t.rows[slot]
		if value := t.enc.encode(&r.state, t.spans.get(r.spans)); value != nil {
			all[string(t.keys.key(int32(slot)))] = value
		}
	}
	return all
}

// Inside is all that a table has, in words, to compare two of them. What must
// never be is there as a key that no other table has.
func (t *Table) Inside() map[string]string {
	all := map[string]string{"clock": fmt.Sprint(t.clock), "holds": fmt.Sprint(t.queue.Len()), "lagging": fmt.Sprint(t.lagging.queue[t.lagging.head:])}
	pending := 0
	for slot := range t.rows {
		r := &t.rows[slot]
		if t.keys.refs[slot].length == 0 {
			if *r != (row{}) {
				all[fmt.Sprint("slot ", slot)] = fmt.Sprintf("free, yet %+v", *r)
			}
			continue
		}
		if _, ok := r.state.Due(); ok {
			pending++
		}
		key := string(t.keys.key(int32(slot)))
		if t.keys.find([]byte(key)) != int32(slot) {
			key += " (not found)"
		}
		all[key] = fmt.Sprintf("%+v spans %v lag %d settings %+v", r.state, t.spans.get(r.spans), r.lag, t.sets.sets[r.settings])
	}
	heard := 0
	for slot := range t.rows {
		heard += t.rows[slot].heardOf()
	}
	if heard != t.devices {
		all["devices"] = fmt.Sprintf("%d counted, %d there", t.devices, heard)
	}
	if pending != t.queue.Len() {
		all["queue"] = fmt.Sprintf("%d deadlines for %d holds", t.queue.Len(), pending)
	}
	return all
}

// Decode is decode without the spans.
func Decode(value []byte) (device.State, error) {
	s, _, err := decode(value)
	return s, err
}
