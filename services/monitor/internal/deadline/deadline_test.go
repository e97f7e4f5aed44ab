package deadline

import (
	"math/rand/v2"
	"testing"
)

func ascending(a, b int32) bool { return a < b }

// TestOrder proves that deadlines come out by time, then by the slots' own
// order, whatever was set, moved and removed before: a scan of a map says the
// same at every step.
func TestOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	// Equal deadlines go by the slots' own order, here the reverse of their numbers.
	q := New(func(a, b int32) bool { return a > b })
	plain := map[int32]int64{}
	first := func() (slot int32, at int64, ok bool) {
		for s, a := range plain {
			if !ok || a < at || a == at && s > slot {
				slot, at, ok = s, a, true
			}
		}
		return slot, at, ok
	}
	for step := range 20_000 {
		slot := r.Int32N(50)
		switch r.IntN(5) {
		case 0, 1, 2:
			at := r.Int64N(40)
			q.Set(slot, at)
			plain[slot] = at
		case 3:
			q.Remove(slot)
			delete(plain, slot)
		case 4:
			if slot, _, ok := q.First(); ok {
				q.Remove(slot)
				delete(plain, slot)
			}
		}
		gotSlot, gotAt, gotOK := q.First()
		wantSlot, wantAt, wantOK := first()
		if gotSlot != wantSlot || gotAt != wantAt || gotOK != wantOK || q.Len() != len(plain) {
			t.Fatalf("step %d: first is slot %d at %d (%t) of %d; want slot %d at %d (%t) of %d",
				step, gotSlot, gotAt, gotOK, q.Len(), wantSlot, wantAt, wantOK, len(plain))
		}
	}
}

// TestRemoveUnknown proves that a slot never set can be removed.
func TestRemoveUnknown(t *testing.T) {
	q := New(ascending)
	q.Remove(5)
	q.Set(1, 10)
	q.Remove(5)
	if slot, at, ok := q.First(); slot != 1 || at != 10 || !ok {
		t.Errorf("first is %d at %d (%t)", slot, at, ok)
	}
}

// TestNoAllocation proves that a queue which has grown allocates no more.
func TestNoAllocation(t *testing.T) {
	q := New(ascending)
	for slot := range int32(1000) {
		q.Set(slot, int64(slot))
	}
	r := rand.New(rand.NewPCG(8, 8))
	if got := testing.AllocsPerRun(1000, func() {
		q.Remove(r.Int32N(1000))
		q.Set(r.Int32N(1000), r.Int64N(1000))
	}); got != 0 {
		t.Errorf("%v allocations a step", got)
	}
}

// BenchmarkSet is the cost of moving one of 100,000 deadlines.
func BenchmarkSet(b *testing.B) {
	q := New(ascending)
	r := rand.New(rand.NewPCG(9, 9))
	const n = 100_000
	for slot := range int32(n) {
		q.Set(slot, r.Int64N(n))
	}
	b.ReportAllocs()
	for b.Loop() {
		q.Set(r.Int32N(n), r.Int64N(n))
	}
}
