package recent

import (
	"strconv"
	"testing"
)

// Proves that the very same event is known again, that another device's is
// not, and that an id used for something else is not taken for a repeat.
func TestHas(t *testing.T) {
	w := New(10)
	on, off := []byte("on"), []byte("off")
	w.Add(w.Mark("a/d", "e1", on))
	if !w.Has(w.Mark("a/d", "e1", on)) {
		t.Error("a repeat was not known")
	}
	for name, m := range map[string]Mark{
		"another device":  w.Mark("a/d2", "e1", on),
		"another id":      w.Mark("a/d", "e2", on),
		"another content": w.Mark("a/d", "e1", off),
		"shifted border":  w.Mark("a/de", "1", on),
	} {
		if w.Has(m) {
			t.Errorf("%s passes for a repeat", name)
		}
	}
	// On, off, on again, all under one id: none of them repeats the last one.
	w.Add(w.Mark("a/d", "e1", off))
	if w.Has(w.Mark("a/d", "e1", on)) {
		t.Error("what was said before something else passes for a repeat")
	}
}

// Proves that the last n are remembered and that the memory is bounded.
func TestBound(t *testing.T) {
	const n = 100
	w := New(n)
	for i := range 1000 {
		w.Add(w.Mark("a/d", strconv.Itoa(i), nil))
		if i >= n-1 && !w.Has(w.Mark("a/d", strconv.Itoa(i-n+1), nil)) {
			t.Fatalf("after %d events, the %dth last is forgotten", i+1, n)
		}
		if len(w.new)+len(w.old) > 2*n {
			t.Fatalf("%d are remembered", len(w.new)+len(w.old))
		}
	}
	none := New(0)
	none.Add(none.Mark("a/d", "e", nil))
	if none.Has(none.Mark("a/d", "e", nil)) {
		t.Error("a window of none remembers")
	}
}
