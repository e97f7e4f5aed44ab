package monitor

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/monitor/internal/device"
	"github.com/tocsin/tocsin/services/monitor/internal/fleettest"
	"github.com/tocsin/tocsin/services/monitor/internal/partition"
)

// someHolds are other holds than the defaults, now and then.
func someHolds(seed uint64) Holds {
	r := rand.New(rand.NewPCG(seed, 2))
	if r.IntN(2) == 0 {
		return defaultHolds
	}
	hold := func() time.Duration {
		return []time.Duration{0, time.Second, 20 * time.Second, time.Minute, 61 * time.Second, 300 * time.Second, 2 * time.Hour}[r.IntN(7)]
	}
	return Holds{Offline: hold(), InternetOffline: hold(), Online: hold()}
}

// askOracle is what the second implementation says about a recording.
func askOracle(t *testing.T, lines []string, h Holds) []oracleTold {
	t.Helper()
	o := newOracle(h)
	for _, l := range lines {
		var e oracleEvent
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			t.Fatal(err)
		}
		o.advance(*e.AppendTime)
		o.event(&e)
		o.advance(o.clock)
	}
	o.advance(o.clock.Add(time.Hour))
	return o.out
}

// seen is a notification of the table in the oracle's words.
func seen(n *partition.Notification) oracleTold {
	at := func(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
	t := oracleTold{
		At: at(n.Decide), Account: n.Account, Device: n.Device, Stage: n.Stage.String(), Type: n.Type.String(),
		Since: at(n.Since), Region: n.Region, Span: n.Span,
	}
	if n.InOutage {
		t.Outage = at(n.Outage)
	}
	if n.Became != device.NoType {
		t.Became = n.Became.String()
	}
	if n.Stage == device.Pending {
		t.Deadline = at(n.Deadline)
	}
	return t
}

// runTable steps a recording; after calls let a test disturb it.
func runTable(t *testing.T, table *partition.Table, lines []string, each func(i int, clock int64)) []oracleTold {
	t.Helper()
	var out []oracleTold
	take := func() {
		for _, n := range table.Notifications() {
			out = append(out, seen(&n))
		}
		table.Commit()
	}
	var clock int64
	for i, l := range lines {
		ev, appended, err := codec.ParseRecorded([]byte(l))
		if err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		clock = max(clock, appended.UnixMilli())
		if each != nil {
			each(i, clock)
		}
		table.Advance(clock)
		table.Event(ev, device.Trace{}, clock)
		table.Advance(clock)
		take()
	}
	table.Advance(clock + 3_600_000)
	take()
	return out
}

// TestOracle proves that the monitor says, stage by stage, what a plain second
// implementation of the rules says about fleets full of trouble, and that the
// replay prints exactly what is due of it, in order.
func TestOracle(t *testing.T) {
	seeds, size := uint64(40), 600
	if testing.Short() {
		seeds = 15
	}
	stages := map[string]int{}
	for seed := range seeds {
		lines, holds := fleettest.Lines(seed, size), someHolds(seed)
		want := askOracle(t, lines, holds)
		got := runTable(t, partition.NewTable(holds.rules()), lines, nil)
		for _, n := range want {
			stages[n.Stage+" "+n.Type]++
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d, holds %+v (-oracle +monitor):\n%s", seed, holds, diff)
		}
		var out bytes.Buffer
		rec := Recording{Name: "fleet", Reader: strings.NewReader(strings.Join(lines, "\n"))}
		if err := (Replay{Hold: holds}).Notifications(&out, rec); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(printed(want), readTold(t, out.Bytes())); diff != "" {
			t.Fatalf("seed %d, holds %+v: replay (-oracle +printed):\n%s", seed, holds, diff)
		}
	}
	for _, stage := range []string{
		"pending OFFLINE", "withdrawn OFFLINE", "due OFFLINE", "paused OFFLINE", "resumed OFFLINE",
		"pending INTERNET_OFFLINE", "withdrawn INTERNET_OFFLINE", "due INTERNET_OFFLINE", "paused INTERNET_OFFLINE",
		"pending ONLINE", "withdrawn ONLINE", "due ONLINE", "due ALERT", "late ALERT",
	} {
		if stages[stage] < 10 {
			t.Errorf("the fleets made only %d of %q: too few to prove anything", stages[stage], stage)
		}
	}
}

// printed is what the replay prints of it.
func printed(all []oracleTold) []told {
	var out []told
	sort.SliceStable(all, func(i, j int) bool {
		a, b := all[i], all[j]
		switch {
		case !a.At.Equal(b.At):
			return a.At.Before(b.At)
		case a.Account != b.Account:
			return a.Account < b.Account
		}
		return a.Device < b.Device
	})
	for _, n := range all {
		if n.Stage == "due" {
			const layout = "2006-01-02T15:04:05.000Z"
			out = append(out, told{n.At.Format(layout), n.Account, n.Device, n.Type, n.Since.Format(layout)})
		}
	}
	return out
}
