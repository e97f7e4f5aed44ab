package account

import "cmp"

// Agenda is a set of keys, each with a number to be served by: the smallest
// number first, then the smallest key, so that the order never depends on how
// it was filled. Its zero value is empty. Set, Remove and Min cost O(log n).
type Agenda[K cmp.Ordered] struct {
	heap []entry[K]
	at   map[K]int // index in heap
}

type entry[K cmp.Ordered] struct {
	key    K
	number int64
}

// Len is how many keys there are.
func (a *Agenda[K]) Len() int { return len(a.heap) }

// Min is the first key and its number; ok is false when there is none.
func (a *Agenda[K]) Min() (key K, number int64, ok bool) {
	if len(a.heap) == 0 {
		return key, 0, false
	}
	return a.heap[0].key, a.heap[0].number, true
}

// Set puts key at number, wherever it was before.
func (a *Agenda[K]) Set(key K, number int64) {
	i, ok := a.at[key]
	if !ok {
		if a.at == nil {
			a.at = make(map[K]int)
		}
		i = len(a.heap)
		a.heap = append(a.heap, entry[K]{key, number})
		a.at[key] = i
	}
	a.heap[i].number = number
	a.down(a.up(i))
}

// Remove takes key out, if it is there.
func (a *Agenda[K]) Remove(key K) {
	i, ok := a.at[key]
	if !ok {
		return
	}
	last := len(a.heap) - 1
	a.swap(i, last)
	a.heap[last] = entry[K]{}
	a.heap = a.heap[:last]
	delete(a.at, key)
	if i < last {
		a.down(a.up(i))
	}
}

func (a *Agenda[K]) less(i, j int) bool {
	x, y := &a.heap[i], &a.heap[j]
	if x.number != y.number {
		return x.number < y.number
	}
	return x.key < y.key
}

func (a *Agenda[K]) swap(i, j int) {
	a.heap[i], a.heap[j] = a.heap[j], a.heap[i]
	a.at[a.heap[i].key], a.at[a.heap[j].key] = i, j
}

func (a *Agenda[K]) up(i int) int {
	for i > 0 {
		parent := (i - 1) / 2
		if !a.less(i, parent) {
			break
		}
		a.swap(i, parent)
		i = parent
	}
	return i
}

func (a *Agenda[K]) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(a.heap); child++ {
			if a.less(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		a.swap(i, least)
		i = least
	}
}
