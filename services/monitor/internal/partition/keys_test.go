package partition

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tocsin/tocsin/services/monitor/internal/device"
)

// TestKeys proves that keys are found while they are there and not after, in
// any order of coming and going: a map says the same.
func TestKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	k := newKeys()
	plain, owners := map[string]int32{}, map[int32]string{}
	for range 50_000 {
		account, id := fmt.Sprint("account-", r.IntN(20)), fmt.Sprint("d", r.IntN(100))
		key := account + "/" + id
		slot, there := plain[key]
		if got := k.find([]byte(key)); there && got != slot || !there && got != -1 {
			t.Fatalf("%s: found at %d, want %d (%t)", key, got, slot, there)
		}
		switch {
		case !there:
			slot = k.add([]byte(key), len(account))
			if other := owners[slot]; other != "" {
				t.Fatalf("%s and %s share slot %d", key, other, slot)
			}
			plain[key], owners[slot] = slot, key
		case r.IntN(2) == 0:
			if a, d := k.names(slot); a != account || d != id {
				t.Fatalf("slot of %s is named %s and %s", key, a, d)
			}
			k.remove(slot)
			delete(plain, key)
			delete(owners, slot)
		}
		if k.len() != len(plain) {
			t.Fatalf("%d keys, want %d", k.len(), len(plain))
		}
	}
	if n := len(k.text); n > 1<<13+2*len(plain)*20 {
		t.Errorf("%d bytes are kept for %d keys", n, len(plain))
	}
}

// TestSpanStore proves that spans are kept apart while lists grow and shrink,
// and that room given back is used again.
func TestSpanStore(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	var s spanStore
	refs := make([]spanRef, 50)
	lists := make([][]device.Span, len(refs))
	for range 50_000 {
		i := r.IntN(len(refs))
		list := make([]device.Span, r.IntN(device.MaxSpans+1))
		for j := range list {
			list[j] = device.NewSpan(r.Uint64(), r.Int64N(device.MaxTime))
		}
		refs[i], lists[i] = s.put(refs[i], list), list
		i = r.IntN(len(refs))
		if !slices.Equal(s.get(refs[i]), lists[i]) {
			t.Fatalf("list %d is %v, want %v", i, s.get(refs[i]), lists[i])
		}
	}
	// Each list may have left room of each class behind at the worst.
	if most := len(refs) * (4 + 8 + 16 + 32); len(s.mem) > most {
		t.Errorf("room for %d spans, of at most %d", len(s.mem), most)
	}
}

// TestSettingSets proves that equal settings are kept once, and only while a
// device has them.
func TestSettingSets(t *testing.T) {
	s := newSettingSets(device.DefaultRules)
	plain := settings{rules: device.DefaultRules}
	bridge := settings{rules: device.DefaultRules, bridge: true}
	a, b, c := s.use(plain), s.use(bridge), s.use(plain)
	if a == 0 || a != c || a == b {
		t.Fatalf("numbers %d %d %d", a, b, c)
	}
	s.release(a)
	s.release(0)
	if s.sets[a] != plain || s.use(plain) != a {
		t.Error("settings were lost while a device had them")
	}
	s.release(a)
	s.release(a)
	s.release(b)
	if s.use(bridge); len(s.sets) != 3 || len(s.numbers) != 1 {
		t.Errorf("%d sets for %d settings", len(s.sets), len(s.numbers))
	}
}
