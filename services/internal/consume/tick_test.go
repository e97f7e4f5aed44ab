package consume

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Rule T3, tick by tick: one teaches the clock, one is in flight at most, none
// sooner than 100 ms after the last, the next at the deadline by the estimate.
func TestTicker(t *testing.T) {
	// The broker's clock is three minutes behind ours.
	local := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	broker := local.Add(-3 * time.Minute)
	var tk ticker
	expect := func(step string, due time.Time, wanted bool, want time.Time, wantOK bool) {
		t.Helper()
		if at, ok := tk.at(due, wanted); ok != wantOK || ok && !at.Equal(want) {
			t.Errorf("%s: a tick at %s, %t; want %s, %t", step, at, ok, want, wantOK)
		}
	}
	read := func(id string, at time.Time) {
		rec := tickRecord("log", 0, id)
		rec.Timestamp = at
		if !isTick(rec) {
			t.Fatal("a tick is not known as one")
		}
		tk.got(rec)
	}
	if at, ok := tk.at(time.Time{}, false); !ok || at.After(local) {
		t.Errorf("on assignment: a tick at %s, %t; want one at once", at, ok)
	}
	tk.send("a#1", local)
	expect("one is in flight", broker, true, time.Time{}, false)
	read("b#1", broker)
	expect("another's came back", broker, true, time.Time{}, false)
	read("a#1", broker)
	expect("nothing is due", time.Time{}, false, time.Time{}, false)
	expect("due in 300 s", broker.Add(300*time.Second), true, local.Add(300*time.Second+tickMargin), true)
	expect("due already", broker.Add(-time.Hour), true, local.Add(tickGap), true)

	sent := local.Add(300*time.Second + tickMargin)
	tk.send("a#2", sent)
	read("a#2", broker.Add(300*time.Second-40*time.Millisecond))
	expect("it came back 40 ms early, the gap is longer", broker.Add(300*time.Second), true, sent.Add(tickGap), true)
	expect("and for a later deadline the difference counts", broker.Add(301*time.Second), true, sent.Add(1040*time.Millisecond+tickMargin), true)

	tk.send("a#3", sent.Add(tickGap))
	tk.failed("a#2")
	expect("an old failure changes nothing", broker, true, time.Time{}, false)
	tk.failed("a#3")
	expect("it was not sent: again", broker, true, sent.Add(2*tickGap), true)
}

// An event is no tick, whatever it lacks.
func TestEventsAreNoTicks(t *testing.T) {
	for name, rec := range map[string]*kgo.Record{
		"empty":          {},
		"with a key":     {Key: []byte("a/b"), Headers: tickRecord("", 0, "").Headers},
		"with a value":   {Value: []byte("x"), Headers: tickRecord("", 0, "").Headers},
		"of other type":  {Headers: []kgo.RecordHeader{{Key: "type", Value: []byte("tocsin.event.v1.DeviceEvent")}}},
		"without a type": {Value: []byte{}},
	} {
		if isTick(rec) {
			t.Errorf("a record %s is taken for a tick", name)
		}
	}
}
