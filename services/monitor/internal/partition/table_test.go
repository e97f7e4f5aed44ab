package partition_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/monitor/internal/device"
	"github.com/tocsin/tocsin/services/monitor/internal/fleettest"
	"github.com/tocsin/tocsin/services/monitor/internal/partition"
)

// entry is one record of a log.
type entry struct {
	event *eventv1.DeviceEvent
	clock int64
}

func readLog(t testing.TB, lines []string) []entry {
	t.Helper()
	var log []entry
	var clock int64
	for _, l := range lines {
		ev, appended, err := codec.ParseRecorded([]byte(l))
		if err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		clock = max(clock, appended.UnixMilli())
		log = append(log, entry{ev, clock})
	}
	return log
}

func step(table *partition.Table, e entry) {
	table.Advance(e.clock)
	table.Event(e.event, device.Trace{}, e.clock)
	table.Advance(e.clock)
}

// take are the notifications since the last commit, which it makes. The event
// that caused one is left out: a double may come first.
func take(table *partition.Table) []partition.Notification {
	var out []partition.Notification
	for _, n := range table.Notifications() {
		n.EventID = ""
		out = append(out, n)
	}
	table.Commit()
	return out
}

func whole(log []entry) (*partition.Table, []partition.Notification) {
	table := partition.NewTable(device.DefaultRules)
	var out []partition.Notification
	for _, e := range log {
		step(table, e)
		out = append(out, take(table)...)
	}
	return table, out
}

const seeds = 6

// TestSnapshot proves that what is written of every device, read back anywhere,
// and the rest of the log give what the whole log gives.
func TestSnapshot(t *testing.T) {
	for seed := range uint64(seeds) {
		log := readLog(t, fleettest.Lines(seed, 500))
		wantTable, want := whole(log)
		r := rand.New(rand.NewPCG(seed, 3))
		table := partition.NewTable(device.DefaultRules)
		var got []partition.Notification
		for _, e := range log {
			if r.IntN(20) == 0 {
				restored := partition.NewTable(device.DefaultRules)
				for key, value := range table.Everything() {
					if err := restored.Restore([]byte(key), value); err != nil {
						t.Fatal(err)
					}
				}
				table = restored
			}
			step(table, e)
			got = append(got, take(table)...)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d (-whole +restored):\n%s", seed, diff)
		}
		if diff := cmp.Diff(wantTable.Everything(), table.Everything()); diff != "" {
			t.Fatalf("seed %d: states (-whole +restored):\n%s", seed, diff)
		}
	}
}

// TestWrittenStateLags proves rule O3: what the transactions wrote is what is
// in memory, but for repeats of the same state from the same run, and those lag
// by a minute at most.
func TestWrittenStateLags(t *testing.T) {
	lagged := 0
	for seed := range uint64(seeds) {
		log := readLog(t, fleettest.Lines(seed, 500))
		table := partition.NewTable(device.DefaultRules)
		written := map[string][]byte{}
		lagging := map[string]int64{} // since when, by the clock
		for i, e := range log {
			step(table, e)
			table.Changed(func(key, value []byte) {
				if value == nil {
					delete(written, string(key))
				} else {
					written[string(key)] = append([]byte(nil), value...)
				}
			})
			table.Commit()
			all := table.Everything()
			if len(all) != len(written) {
				t.Fatalf("seed %d step %d: %d devices, %d written", seed, i, len(all), len(written))
			}
			for key, value := range all {
				if string(value) == string(written[key]) {
					delete(lagging, key)
					continue
				}
				lagged++
				if _, ok := lagging[key]; !ok {
					lagging[key] = e.clock
				}
				if lag := e.clock - lagging[key]; lag >= 60_000 {
					t.Fatalf("seed %d step %d: the state of %s lags by %d ms", seed, i, key, lag)
				}
				now, then := decoded(t, key, value), decoded(t, key, written[key])
				if now.Last.Run == 0 || now.Last.Run != then.Last.Run || now.Last.Condition != then.Last.Condition {
					t.Fatalf("seed %d step %d: the written state of %s lacks more than a repeat:\n%+v\n%+v", seed, i, key, then, now)
				}
				then.Last = now.Last
				if now != then {
					t.Fatalf("seed %d step %d: the written state of %s lacks more than the last sample:\n%+v\n%+v", seed, i, key, then, now)
				}
			}
		}
	}
	if lagged == 0 {
		t.Error("nothing ever lagged: the test proves nothing")
	}
}

func decoded(t *testing.T, key string, value []byte) device.State {
	t.Helper()
	s, err := partition.Decode(value)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return s
}

// TestTwice proves that each event of a log twice has the effect of once.
func TestTwice(t *testing.T) {
	for seed := range uint64(seeds) {
		log := readLog(t, fleettest.Lines(seed, 500))
		_, want := whole(log)
		table := partition.NewTable(device.DefaultRules)
		var got []partition.Notification
		for _, e := range log {
			step(table, e)
			step(table, e)
			got = append(got, take(table)...)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d (-once +twice):\n%s", seed, diff)
		}
	}
}

// TestUndo proves that an aborted transaction leaves no trace, whatever was in
// it, and that its records then have the effect they would have had.
func TestUndo(t *testing.T) {
	for seed := range uint64(seeds) {
		log := readLog(t, fleettest.Lines(seed, 500))
		_, want := whole(log)
		r := rand.New(rand.NewPCG(seed, 4))
		table := partition.NewTable(device.DefaultRules)
		var got []partition.Notification
		for rest := log; len(rest) > 0; {
			n := min(1+r.IntN(30), len(rest))
			before := table.Inside()
			for range r.IntN(3) {
				// Aborted with more or fewer records than are committed later.
				for _, e := range rest[:min(1+r.IntN(60), len(rest))] {
					step(table, e)
				}
				table.Abort()
				if diff := cmp.Diff(before, table.Inside()); diff != "" {
					t.Fatalf("seed %d: an aborted transaction left (-before +after):\n%s", seed, diff)
				}
				if n := len(table.Notifications()); n != 0 || *table.Counts() != (partition.Counts{}) {
					t.Fatalf("seed %d: %d notifications and %+v left", seed, n, *table.Counts())
				}
				table.Changed(func(key, _ []byte) { t.Fatalf("seed %d: %s is still to be written", seed, key) })
			}
			for _, e := range rest[:n] {
				step(table, e)
			}
			got = append(got, take(table)...)
			rest = rest[n:]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d (-whole +with aborts):\n%s", seed, diff)
		}
	}
}

const start = 1_772_366_400_000 // 2026-03-01T12:00:00Z

func status(account, id string, at int64, state eventv1.Status_State) *eventv1.DeviceEvent {
	return &eventv1.DeviceEvent{
		AccountId: account, DeviceId: id, OccurTime: codec.Timestamp(at),
		Kind: &eventv1.DeviceEvent_Status{Status: &eventv1.Status{State: state}},
	}
}

func motion(region, span string, at int64) *eventv1.DeviceEvent {
	return &eventv1.DeviceEvent{
		AccountId: "acme", DeviceId: "cam-1", OccurTime: codec.Timestamp(at),
		Kind: &eventv1.DeviceEvent_Motion{Motion: &eventv1.Motion{Phase: eventv1.Motion_START, RegionId: region, SpanId: span}},
	}
}

func told(table *partition.Table) []string {
	var out []string
	for _, n := range take(table) {
		out = append(out, fmt.Sprintf("%s %s %s/%s@%d", n.Stage, n.Type, n.Account, n.Device, (n.Decide-start)/1000))
	}
	return out
}

// TestOrder proves rule T3's order among equal deadlines: account, then device,
// which is not the order of their keys.
func TestOrder(t *testing.T) {
	table := partition.NewTable(device.DefaultRules)
	for _, account := range []string{"b", "a.b", "a-b", "a"} {
		for _, id := range []string{"cam.1", "cam", "cam-1"} {
			step(table, entry{status(account, id, start, eventv1.Status_OFFLINE), start})
		}
	}
	take(table)
	table.Advance(start + 300_000)
	var want []string
	for _, account := range []string{"a", "a-b", "a.b", "b"} {
		for _, id := range []string{"cam", "cam-1", "cam.1"} {
			want = append(want, fmt.Sprintf("due OFFLINE %s/%s@300", account, id))
		}
	}
	if diff := cmp.Diff(want, told(table)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func deviceSettings(change func(*settingsv1.DeviceSettings)) *settingsv1.DeviceSettings {
	s := &settingsv1.DeviceSettings{AccountId: "acme", DeviceId: "cam-1", Active: true}
	if change != nil {
		change(s)
	}
	return s
}

func set(t *testing.T, table *partition.Table, s *settingsv1.DeviceSettings) {
	t.Helper()
	if err := table.Setting([]byte("acme/cam-1"), s, start); err != nil {
		t.Fatal(err)
	}
}

// TestHoldSettings proves rule H10: a changed hold is for candidates that start
// later, a field that is not set is the service's, and so is a deleted one's.
func TestHoldSettings(t *testing.T) {
	table := partition.NewTable(device.DefaultRules)
	set(t, table, deviceSettings(func(s *settingsv1.DeviceSettings) {
		s.Holds = &settingsv1.Holds{Offline: durationpb.New(100 * time.Second)}
	}))
	at := func(sec int64, state eventv1.Status_State) {
		step(table, entry{status("acme", "cam-1", start+sec*1000, state), start + sec*1000})
	}
	at(0, eventv1.Status_OFFLINE)
	set(t, table, deviceSettings(func(s *settingsv1.DeviceSettings) {
		s.Holds = &settingsv1.Holds{Offline: durationpb.New(200 * time.Second), Online: durationpb.New(0)}
	}))
	at(150, eventv1.Status_ONLINE)
	at(1000, eventv1.Status_OFFLINE)
	at(1250, eventv1.Status_INTERNET_OFFLINE)
	set(t, table, deviceSettings(nil))
	at(1560, eventv1.Status_ONLINE)
	table.Advance(start + 2_000_000)
	want := []string{
		"pending OFFLINE acme/cam-1@0",
		"due OFFLINE acme/cam-1@100",
		"pending ONLINE acme/cam-1@150",
		"due ONLINE acme/cam-1@150",
		"pending OFFLINE acme/cam-1@1000",
		"due OFFLINE acme/cam-1@1200",
		"pending INTERNET_OFFLINE acme/cam-1@1250",
		"due INTERNET_OFFLINE acme/cam-1@1550",
		"pending ONLINE acme/cam-1@1560",
		"due ONLINE acme/cam-1@1655",
	}
	if diff := cmp.Diff(want, told(table)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// TestBridgeSetting proves that a device set up as a bridge is read as one,
// whatever its events say.
func TestBridgeSetting(t *testing.T) {
	for _, bridge := range []bool{false, true} {
		table := partition.NewTable(device.DefaultRules)
		set(t, table, deviceSettings(func(s *settingsv1.DeviceSettings) {
			if bridge {
				s.Kind = settingsv1.Device_BRIDGE
			}
		}))
		ev := status("acme", "cam-1", start, eventv1.Status_UNKNOWN)
		ev.GetStatus().Bits = 1179649
		step(table, entry{ev, start})
		if got := len(told(table)); (got == 0) != bridge {
			t.Errorf("bridge %t: %d notifications for a mask without stream", bridge, got)
		}
	}
}

// TestDisabledRegion proves rule M1: no alert of a region that is switched off,
// and the span is not remembered, so that it may alert when switched on.
func TestDisabledRegion(t *testing.T) {
	table := partition.NewTable(device.DefaultRules)
	set(t, table, deviceSettings(func(s *settingsv1.DeviceSettings) { s.DisabledRegions = []string{"yard", "door", "yard"} }))
	try := func(region string, want int) {
		t.Helper()
		step(table, entry{motion(region, "m1", start), start})
		if got := told(table); len(got) != want {
			t.Errorf("region %q: told %v, want %d", region, got, want)
		}
	}
	try("door", 0)
	try("yard", 0)
	try("doo", 1)
	try("", 1)
	set(t, table, deviceSettings(func(s *settingsv1.DeviceSettings) { s.DisabledRegions = []string{""} }))
	try("door", 1)
	try("door", 0) // a double
	step(table, entry{motion("", "m2", start), start})
	if got := told(table); len(got) != 0 {
		t.Errorf("the whole frame is switched off, yet %v", got)
	}
}

// TestMotionSteps proves rule M1: updates and ends make no notification, and
// are not remembered as doubles of a start that comes late.
func TestMotionSteps(t *testing.T) {
	table := partition.NewTable(device.DefaultRules)
	for _, phase := range []eventv1.Motion_Phase{eventv1.Motion_UPDATE, eventv1.Motion_END, eventv1.Motion_START, eventv1.Motion_END} {
		ev := motion("door", "m1", start)
		ev.GetMotion().Phase = phase
		step(table, entry{ev, start})
	}
	if diff := cmp.Diff([]string{"due ALERT acme/cam-1@0"}, told(table)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// TestGone proves that a deleted device is forgotten, with what was pending
// withdrawn and a tombstone written, unless it was heard of since, and that an
// abort brings it back.
func TestGone(t *testing.T) {
	table := partition.NewTable(device.DefaultRules)
	set(t, table, deviceSettings(nil))
	step(table, entry{status("acme", "cam-1", start, eventv1.Status_OFFLINE), start})
	step(table, entry{motion("door", "m1", start), start})
	take(table)
	table.Advance(start + 10_000)
	table.Commit()
	gone := func(at int64) {
		t.Helper()
		if err := table.Setting([]byte("acme/cam-1"), nil, at); err != nil {
			t.Fatal(err)
		}
	}
	gone(start - 1)
	table.Advance(start + 11_000)
	if got := told(table); len(got) != 0 || table.Holds() != 1 {
		t.Fatalf("heard of since it was deleted, yet %v, %d holds", got, table.Holds())
	}
	gone(start + 1)
	if at, ok := table.Due(); !ok || at > start+11_000 {
		t.Errorf("no tick is wanted for the deletion: %d %t", at, ok)
	}
	before := table.Inside()
	table.Advance(start + 12_000)
	table.Abort()
	if diff := cmp.Diff(before, table.Inside()); diff != "" {
		t.Fatalf("an aborted deletion left (-before +after):\n%s", diff)
	}
	table.Advance(start + 12_000)
	var tombstones int
	table.Changed(func(key, value []byte) {
		if value != nil {
			t.Errorf("%s: %d bytes written, want a tombstone", key, len(value))
		}
		tombstones++
	})
	if diff := cmp.Diff([]string{"withdrawn OFFLINE acme/cam-1@12"}, told(table)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if tombstones != 1 || table.Devices() != 0 || table.Holds() != 0 {
		t.Errorf("%d tombstones, %d devices, %d holds", tombstones, table.Devices(), table.Holds())
	}
	if _, ok := table.Due(); ok {
		t.Error("a tick is still wanted")
	}
}

// TestBadSettings proves that a setting that cannot be is refused by name and
// the old one stays.
func TestBadSettings(t *testing.T) {
	table := partition.NewTable(device.DefaultRules)
	set(t, table, deviceSettings(func(s *settingsv1.DeviceSettings) {
		s.Holds = &settingsv1.Holds{Offline: durationpb.New(0)}
	}))
	before := table.Inside()
	for _, bad := range []struct {
		key string
		s   *settingsv1.DeviceSettings
	}{
		{"acme", deviceSettings(nil)},
		{"acme/cam-2", deviceSettings(nil)},
		{"acme/cam 1", nil},
		{"acme/cam-1", deviceSettings(func(s *settingsv1.DeviceSettings) {
			s.Holds = &settingsv1.Holds{Online: durationpb.New(-time.Second)}
		})},
		{"acme/cam-1", deviceSettings(func(s *settingsv1.DeviceSettings) {
			s.Holds = &settingsv1.Holds{InternetOffline: durationpb.New(10_000 * time.Hour)}
		})},
	} {
		if err := table.Setting([]byte(bad.key), bad.s, start); err == nil {
			t.Errorf("%s %v: accepted", bad.key, bad.s)
		} else {
			t.Log(err)
		}
	}
	if diff := cmp.Diff(before, table.Inside()); diff != "" {
		t.Errorf("refused settings changed (-before +after):\n%s", diff)
	}
}

// TestSpansAreBounded proves that a device remembers 32 spans and forgets the
// oldest first (rule M2).
func TestSpansAreBounded(t *testing.T) {
	table := partition.NewTable(device.DefaultRules)
	try := func(n, want int) {
		t.Helper()
		step(table, entry{motion("door", fmt.Sprint("m", n), start), start})
		if got := len(take(table)); got != want {
			t.Errorf("span %d: %d alerts, want %d", n, got, want)
		}
	}
	for n := range 33 {
		try(n, 1)
	}
	try(1, 0)
	try(32, 0)
	try(0, 1) // forgotten
	try(1, 1) // and so the next oldest
	try(2, 1)
	try(32, 0)
}
