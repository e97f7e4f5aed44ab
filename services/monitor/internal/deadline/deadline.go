// Package deadline keeps the deadlines of a partition's devices in the order in
// which they fire (rule T3). It knows slots, not devices, and no clock: it
// never fires anything by itself.
//
// Invariant: a slot has at most one deadline; the earliest is found without
// looking at the others, and setting or removing one touches log n of them.
package deadline

// Queue is an indexed binary heap. It allocates only to grow. It is not for
// use by several goroutines at once.
type Queue struct {
	heap []entry
	// place is 1 + the index in heap of a slot's entry, 0 for none.
	place []int32
	less  func(a, b int32) bool
}

type entry struct {
	at   int64
	slot int32
}

// New makes an empty queue. less orders slots whose deadlines are equal; it
// must be a strict order that never changes for slots that are in the queue.
func New(less func(a, b int32) bool) *Queue { return &Queue{less: less} }

// Len is how many deadlines there are.
func (q *Queue) Len() int { return len(q.heap) }

// First is the earliest deadline, in ms, and whose it is.
func (q *Queue) First() (slot int32, at int64, ok bool) {
	if len(q.heap) == 0 {
		return 0, 0, false
	}
	return q.heap[0].slot, q.heap[0].at, true
}

// Set gives slot, which is not negative, the deadline at in place of any other.
func (q *Queue) Set(slot int32, at int64) {
	for int(slot) >= len(q.place) {
		q.place = append(q.place, 0)
	}
	i := int(q.place[slot]) - 1
	if i < 0 {
		i = len(q.heap)
		q.heap = append(q.heap, entry{at, slot})
		q.place[slot] = int32(i) + 1
		q.up(i)
		return
	}
	if q.heap[i].at != at {
		q.heap[i].at = at
		q.fix(i)
	}
}

// Remove takes slot's deadline away, if it has one.
func (q *Queue) Remove(slot int32) {
	if int(slot) >= len(q.place) || q.place[slot] == 0 {
		return
	}
	i := int(q.place[slot]) - 1
	last := len(q.heap) - 1
	q.swap(i, last)
	q.heap = q.heap[:last]
	q.place[slot] = 0
	if i < last {
		q.fix(i)
	}
}

func (q *Queue) before(i, j int) bool {
	a, b := q.heap[i], q.heap[j]
	if a.at != b.at {
		return a.at < b.at
	}
	return q.less(a.slot, b.slot)
}

func (q *Queue) swap(i, j int) {
	q.heap[i], q.heap[j] = q.heap[j], q.heap[i]
	q.place[q.heap[i].slot] = int32(i) + 1
	q.place[q.heap[j].slot] = int32(j) + 1
}

func (q *Queue) fix(i int) {
	if !q.down(i) {
		q.up(i)
	}
}

func (q *Queue) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !q.before(i, parent) {
			return
		}
		q.swap(i, parent)
		i = parent
	}
}

// down reports whether the entry moved.
func (q *Queue) down(i int) bool {
	start := i
	for {
		child := 2*i + 1
		if child >= len(q.heap) {
			break
		}
		if right := child + 1; right < len(q.heap) && q.before(right, child) {
			child = right
		}
		if !q.before(child, i) {
			break
		}
		q.swap(i, child)
		i = child
	}
	return i > start
}
