package account

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// start is a Monday noon, UTC.
var start = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// driver is the shell in small: it advances, steps, advances, and then begins
// what there is room for.
type driver struct {
	rules Rules
	state *State
	set   *Settings
	room  int
	// between is called after every step with what it did, if set.
	between func(in Input, effects []Effect)
}

func newDriver(set *Settings) *driver {
	return &driver{rules: Default(), state: New(), set: set, room: 4}
}

func (d *driver) step(in Input) []Effect {
	effects := d.rules.Step(d.state, d.set, in)
	if d.between != nil {
		d.between(in, effects)
	}
	return effects
}

// feed takes one record of the log; a Decide stands for a tick.
func (d *driver) feed(at time.Time, in Input) []Effect {
	effects := d.step(Elapse{at})
	switch tick := in.(type) {
	case nil:
	case Decide:
		for {
			if _, ok := d.state.Decidable(); !ok {
				break
			}
			effects = append(effects, d.step(tick)...)
		}
	default:
		effects = append(effects, d.step(in)...)
	}
	effects = append(effects, d.step(Elapse{at})...)
	for d.state.Flying() < d.room {
		if next, ok := d.state.Starts(); !ok || next.After(at) {
			break
		}
		effects = append(effects, d.step(Begin{at})...)
	}
	return effects
}

// parts is everything kept of s, in ascending order of keys.
func parts(s *State) []Part {
	var all []Part
	for _, p := range s.undecided {
		all = append(all, p)
	}
	for _, p := range s.outages {
		all = append(all, p)
	}
	if s.recent != nil {
		all = append(all, s.recent)
	}
	for _, p := range s.mails {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Part) int { return compareKeys(a.Key(), b.Key()) })
	return all
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Offset, b.Offset))
}

// derived is what State works out of its parts, in a form that compares.
type derived struct {
	Waiting, Recoveries map[string]int64
	Current             map[string]string
	Decidable           []string
	Starts, Ends        []string
	Flying              int
}

func derive(s *State) derived {
	return derived{
		s.waiting, s.recoveries, s.current,
		listed(&s.decidable), listed(&s.starts), listed(&s.ends), s.flying,
	}
}

// listed is an agenda in the order in which it serves.
func listed[K int64 | string](a *Agenda[K]) []string {
	list := slices.Clone(a.heap)
	slices.SortFunc(list, func(x, y entry[K]) int {
		return cmp.Or(cmp.Compare(x.number, y.number), cmp.Compare(x.key, y.key))
	})
	lines := make([]string, len(list))
	for i, e := range list {
		lines[i] = fmt.Sprint(e.number, " ", e.key)
	}
	return lines
}

// restored is a State made of what another keeps, put in no order.
func restored(all []Part) *State {
	s := New()
	for _, i := range rand.New(rand.NewPCG(1, uint64(len(all)))).Perm(len(all)) {
		s.Put(all[i].Key(), all[i])
	}
	return s
}

func undo(s *State, effects []Effect) {
	for _, e := range slices.Backward(effects) {
		if c, ok := e.(Changed); ok {
			s.Put(c.Key, c.Before)
		}
	}
}

// Proves that an agenda serves by number, then key, whatever was set before,
// against a list that is sorted each time.
func TestAgenda(t *testing.T) {
	var a Agenda[string]
	want := map[string]int64{}
	seed := uint64(1)
	next := func(n uint64) uint64 { seed = seed*6364136223846793005 + 1442695040888963407; return seed >> 33 % n }
	for range 20_000 {
		key := string(rune('a' + next(26)))
		if next(3) == 0 {
			a.Remove(key)
			delete(want, key)
		} else {
			number := int64(next(10))
			a.Set(key, number)
			want[key] = number
		}
		first, number, ok := a.Min()
		for k, n := range want {
			if n < number || n == number && k < first {
				t.Fatalf("Min is %s at %d, but %s is at %d", first, number, k, n)
			}
		}
		if ok != (len(want) > 0) || a.Len() != len(want) || ok && want[first] != number {
			t.Fatalf("Min is %s at %d (%v), Len %d, want one of %v", first, number, ok, a.Len(), want)
		}
	}
}
