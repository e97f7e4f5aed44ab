package device

import "testing"

// BenchmarkStep is the cost of a repeat, and that of a hold begun and ended.
func BenchmarkStep(b *testing.B) {
	b.Run("repeat", func(b *testing.B) {
		var s State
		var effects []Effect
		in := Input{Kind: Status, At: scriptStart, Occur: scriptStart, Receive: scriptStart, Reading: Reading{Condition: Online}, Run: 1}
		b.ReportAllocs()
		for b.Loop() {
			in.At++
			in.Occur++
			in.Receive++
			in.Sequence++
			s, effects = DefaultRules.Step(s, in, effects[:0])
		}
	})
	b.Run("hold", func(b *testing.B) {
		s := State{Confirmed: Online}
		var effects []Effect
		in := Input{Kind: Status, At: scriptStart, Occur: scriptStart, Receive: scriptStart, Run: 1}
		b.ReportAllocs()
		for b.Loop() {
			in.At++
			in.Occur++
			in.Receive++
			in.Sequence++
			in.Reading.Condition = Offline
			if in.Sequence%2 == 0 {
				in.Reading.Condition = Online
			}
			s, effects = DefaultRules.Step(s, in, effects[:0])
		}
	})
}

// TestStepDoesNotAllocate proves that a step takes no memory of its own.
func TestStepDoesNotAllocate(t *testing.T) {
	s := State{Confirmed: Online}
	effects := make([]Effect, 0, 4)
	in := Input{Kind: Status, At: scriptStart, Occur: scriptStart, Receive: scriptStart, Run: 1, Reading: Reading{Condition: Offline}}
	if n := testing.AllocsPerRun(1000, func() {
		in.Sequence++
		in.Reading.Condition ^= Online ^ Offline
		s, effects = DefaultRules.Step(s, in, effects[:0])
	}); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}
