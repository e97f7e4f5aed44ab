package known

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
)

var start = time.UnixMilli(1_772_366_400_000)

const (
	online  = 1441847
	offline = 1179681
)

func sample(bits uint32, at time.Duration) *eventv1.DeviceEvent {
	return &eventv1.DeviceEvent{
		AccountId: "a", DeviceId: "d", OccurTime: codec.Timestamp(start.Add(at).UnixMilli()),
		Kind: &eventv1.DeviceEvent_Status{Status: &eventv1.Status{Bits: bits}},
	}
}

// send steps an event and, as Kafka would, says that it is there.
func send(t *testing.T, table *Table, ev *eventv1.DeviceEvent, now time.Time) Verdict {
	t.Helper()
	v := table.Step("a/d", ev, now)
	if !v.Drop {
		value, err := codec.EncodeEvent(ev)
		if err != nil {
			t.Fatal(err)
		}
		table.Sent("a/d", v.Version, value, now)
	}
	return v
}

// Proves rule L1: the first status passes, an equal one does not, a changed
// one does; and where others may speak for the device, all pass.
func TestOnlyChangesPass(t *testing.T) {
	for _, drop := range []bool{true, false} {
		table := New(Config{Most: 10, Slots: 4, Drop: drop})
		for i, step := range []struct {
			bits          uint32
			drop, changed bool
		}{
			{online, false, true},
			{online, drop, false},
			{offline, false, true},
			{offline, drop, false},
			{0, false, false},       // says nothing (rule S1): judged and counted by the monitor
			{1 << 16, false, false}, // likewise
			{offline, drop, false},
			{online, false, true},
		} {
			at := time.Duration(i) * time.Second
			v := send(t, table, sample(step.bits, at), start.Add(at))
			if v.Drop != step.drop || v.Changed != step.changed {
				t.Errorf("drop=%v, step %d: got %+v, want %+v", drop, i, v, step)
			}
		}
	}
}

// Proves that a repeat is not dropped while what it repeats is not surely in
// Kafka: neither when that is under way nor when it failed.
func TestUnsureStatusIsNotDropped(t *testing.T) {
	table := New(Config{Most: 10, Slots: 4, Drop: true})
	first := table.Step("a/d", sample(online, 0), start)
	second := table.Step("a/d", sample(online, time.Second), start)
	if second.Drop || second.Changed {
		t.Fatalf("a repeat of a status under way: %+v", second)
	}
	// The first arrives, the second has failed: the newest is not there.
	table.Sent("a/d", first.Version, []byte("x"), start)
	if third := table.Step("a/d", sample(online, 2*time.Second), start); third.Drop {
		t.Errorf("a repeat of a status that failed was dropped")
	}
}

// Proves the same for a change: what it changes to is in Kafka only when that
// is known, however sure the status before it was.
func TestUnsureChangeIsNotDropped(t *testing.T) {
	table := New(Config{Most: 10, Slots: 4, Drop: true})
	send(t, table, sample(online, 0), start)
	table.Step("a/d", sample(offline, time.Second), start.Add(time.Second))
	if again := table.Step("a/d", sample(offline, 2*time.Second), start.Add(2*time.Second)); again.Drop {
		t.Errorf("a repeat of a change under way was dropped")
	}
}

// Proves that an older sample passes without becoming the last one known, by
// sequence within a run and by time otherwise.
func TestOlderSampleIsNotRemembered(t *testing.T) {
	run := func(sequence uint64, bits uint32, at time.Duration) *eventv1.DeviceEvent {
		ev := sample(bits, at)
		ev.SourceId, ev.SourceEpoch, ev.Sequence = "s", "1", sequence
		return ev
	}
	for name, tc := range map[string]struct{ last, older *eventv1.DeviceEvent }{
		"by time":     {sample(online, 10*time.Second), sample(offline, 9*time.Second)},
		"by sequence": {run(8, online, 0), run(7, offline, time.Second)},
	} {
		table := New(Config{Most: 10, Slots: 4, Drop: true})
		send(t, table, tc.last, start.Add(time.Minute))
		if v := send(t, table, tc.older, start.Add(time.Minute)); v.Drop || v.Version != 0 {
			t.Errorf("%s: the older sample: %+v", name, v)
		}
		if s, ok := table.Fold("a/d", 0, 0, eventv1.Status_UNKNOWN); !ok || s.Bits != online {
			t.Errorf("%s: the last status known is %v", name, s)
		}
	}
}

// Proves that a source whose clock runs ahead does not make all that follows
// look old.
func TestFutureSampleDoesNotStick(t *testing.T) {
	table := New(Config{Most: 10, Slots: 4, Drop: true})
	send(t, table, sample(online, 30*24*time.Hour), start)
	if v := send(t, table, sample(offline, time.Second), start.Add(time.Second)); !v.Changed || v.Version == 0 {
		t.Errorf("the sample after one from the future: %+v", v)
	}
}

// Proves rule S2: codes set and clear their bits in the last status known, and
// without one only those speak that say a state.
func TestFold(t *testing.T) {
	table := New(Config{Most: 10, Slots: 4})
	if _, ok := table.Fold("a/d", 1<<20, 0, eventv1.Status_UNKNOWN); ok {
		t.Errorf("RCON without a status said something")
	}
	if s, ok := table.Fold("a/d", 0, 1<<20, eventv1.Status_INTERNET_OFFLINE); !ok || s.State != eventv1.Status_INTERNET_OFFLINE {
		t.Errorf("RCOF without a status: %v", s)
	}
	bridge := sample(1179649, 0)
	bridge.GetStatus().Kind = eventv1.Status_BRIDGE
	send(t, table, bridge, start)
	if s, ok := table.Fold("a/d", 0, 1<<20, eventv1.Status_INTERNET_OFFLINE); !ok || s.Bits != 1179649-1<<20 || s.Kind != eventv1.Status_BRIDGE || s.State != eventv1.Status_UNKNOWN {
		t.Errorf("RCOF with a status: %v", s)
	}
	if s, ok := table.Fold("a/d", 1<<18, 0, eventv1.Status_UNKNOWN); !ok || s.Bits != 1179649|1<<18 {
		t.Errorf("CSAU with a status: %v", s)
	}
}

// Proves that what is sent again is marked and has its original run, sequence
// and times (rule L1), also when it had no time of its own.
func TestRestate(t *testing.T) {
	table := New(Config{Most: 10, Slots: 1})
	ev := sample(offline, 0)
	ev.SourceId, ev.SourceEpoch, ev.Sequence = "s", "1", 7
	send(t, table, ev, start.Add(time.Second))
	want := sample(offline, 0)
	want.SourceId, want.SourceEpoch, want.Sequence = "s", "1", 7
	want.Restated, want.ReceiveTime = true, codec.Timestamp(start.Add(time.Second).UnixMilli())
	if diff := cmp.Diff([]Restatement{{"a/d", want}}, table.Restate(0), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}

	undated := sample(online, 0)
	undated.OccurTime = nil
	send(t, table, undated, start.Add(5*time.Second))
	again := table.Restate(0)[0].Event
	if at, _ := codec.UnixMilli(again.OccurTime); at != start.Add(5*time.Second).UnixMilli() || !again.TimeCorrected {
		t.Errorf("a status without a time is restated as %v", again)
	}
}

// Proves that the memory is bounded, and that at the bound it is the device
// not heard of for longest that is forgotten.
func TestBound(t *testing.T) {
	table := New(Config{Most: 100, Slots: 1, Drop: true})
	for i := range 150 {
		table.Step(fmt.Sprintf("a/%d", i), sample(online, 0), start.Add(time.Duration(i)*time.Second))
	}
	if table.Len() != 100 {
		t.Errorf("%d devices are remembered, want 100", table.Len())
	}
	if v := table.Step("a/49", sample(online, 0), start.Add(time.Hour)); !v.Changed {
		t.Errorf("a/49 was remembered: %+v", v)
	}
	if v := table.Step("a/51", sample(online, 0), start.Add(time.Hour)); v.Changed {
		t.Errorf("a/51 was forgotten: %+v", v)
	}
}
