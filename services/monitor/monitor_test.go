package monitor

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/kafkatest"
)

const partitions = 3

// running is a monitor in a bubble.
type running struct {
	*Service
	stop func()
}

func run(t *testing.T, c *kafkatest.Cluster, change func(*Config)) running {
	t.Helper()
	cfg := Config{Hold: defaultHolds, Group: "tocsin-monitor", Instance: "m1", Members: 1}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg, c.Env(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	for range 300 {
		if s.Ready() == nil {
			return running{s, stop}
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("not ready after 30 s: %v", s.Ready())
	return running{}
}

// emit appends an event as an archiver of that data centre does.
func emit(t *testing.T, cl *kgo.Client, topic, dataCenter string, ev *eventv1.DeviceEvent) {
	t.Helper()
	value, err := codec.EncodeEvent(ev)
	if err != nil {
		t.Fatal(err)
	}
	key := codec.DeviceKey(ev.AccountId, ev.DeviceId)
	rec := &kgo.Record{Topic: topic, Partition: kafka.PartitionFor(key, partitions), Key: []byte(key), Value: value, Headers: []kgo.RecordHeader{
		{Key: kafka.HeaderType, Value: []byte(codec.TypeEvent)},
		{Key: kafka.HeaderDataCenter, Value: []byte(dataCenter)},
	}}
	if err := cl.ProduceSync(context.Background(), rec).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func sample(id string, state eventv1.Status_State) *eventv1.DeviceEvent {
	return &eventv1.DeviceEvent{
		AccountId: "acme", DeviceId: id, OccurTime: codec.Timestamp(time.Now().UnixMilli()),
		Kind: &eventv1.DeviceEvent_Status{Status: &eventv1.Status{State: state}},
	}
}

// notified are the notifications so far, as "stage type device @ seconds after
// begun", and when each was appended.
func notified(t *testing.T, c *kafkatest.Cluster, begun time.Time) (told []string, appended []time.Time) {
	t.Helper()
	for _, rec := range records(t, c, c.Topics.Notifications.Name) {
		n := new(notificationv1.Notification)
		if err := n.UnmarshalVT(rec.Value); err != nil {
			t.Fatal(err)
		}
		told = append(told, fmt.Sprintf("%s %s %s @%v", n.Stage, n.Type, n.DeviceId, n.DecideTime.AsTime().Sub(begun).Round(time.Second)))
		appended = append(appended, rec.Timestamp)
	}
	return told, appended
}

// records are the committed records of a topic so far.
func records(t *testing.T, c *kafkatest.Cluster, topic string) []*kgo.Record {
	t.Helper()
	cl := c.Client(t, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
	defer cl.Close()
	var all []*kgo.Record
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		fetches := cl.PollFetches(ctx)
		cancel()
		if fetches.NumRecords() == 0 {
			return all
		}
		all = append(all, fetches.Records()...)
	}
}

// TestHoldInSilence proves that a hold on a silent partition is told at its
// deadline, within a second, and once; and that a recovery is.
func TestHoldInSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, partitions)
		m := run(t, c, nil)
		cl := c.Client(t)
		begun := time.Now()
		emit(t, cl, c.Topics.ETags.Name, "", sample("cam-1", eventv1.Status_OFFLINE))
		time.Sleep(400 * time.Second)
		emit(t, cl, c.Topics.ETags.Name, "", sample("cam-1", eventv1.Status_ONLINE))
		time.Sleep(400 * time.Second)
		m.stop()
		told, appended := notified(t, c, begun)
		want := []string{"PENDING OFFLINE cam-1 @0s", "DUE OFFLINE cam-1 @5m0s", "PENDING ONLINE cam-1 @6m40s", "DUE ONLINE cam-1 @8m15s"}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Fatalf("told (-want +got):\n%s", diff)
		}
		if late := appended[1].Sub(begun.Add(300 * time.Second)); late < 0 || late > time.Second {
			t.Errorf("told %v after the deadline", late)
		}
	})
}

// TestHoldOverRestart proves that a hold begun in one life of the monitor is
// told in the next, at its own deadline (B01), and that what ended meanwhile
// is withdrawn.
func TestHoldOverRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, partitions)
		m := run(t, c, nil)
		cl := c.Client(t)
		begun := time.Now()
		for _, id := range []string{"cam-1", "cam-2"} {
			emit(t, cl, c.Topics.ETags.Name, "", sample(id, eventv1.Status_OFFLINE))
			time.Sleep(time.Second)
		}
		time.Sleep(118 * time.Second)
		m.stop()
		emit(t, cl, c.Topics.ETags.Name, "", sample("cam-2", eventv1.Status_ONLINE))
		time.Sleep(30 * time.Second)
		m = run(t, c, func(cfg *Config) { cfg.Instance = "m2" })
		time.Sleep(400 * time.Second)
		m.stop()
		told, appended := notified(t, c, begun)
		last := len(told) - 1
		want := map[string]bool{
			"PENDING OFFLINE cam-1 @0s": true, "PENDING OFFLINE cam-2 @1s": true,
			"WITHDRAWN OFFLINE cam-2 @2m0s": true, "DUE OFFLINE cam-1 @5m0s": true,
		}
		got := map[string]bool{}
		for _, w := range told {
			got[w] = true
		}
		if diff := cmp.Diff(want, got); diff != "" || len(told) != len(want) {
			t.Fatalf("told %v (-want +got):\n%s", told, diff)
		}
		if late := appended[last].Sub(begun.Add(300 * time.Second)); late < 0 || late > time.Second {
			t.Errorf("told %v after the deadline", late)
		}
	})
}

// TestDataCentersShareNothing proves that two filtered monitors on one cluster
// each tell of their own devices only, and restore only their own.
func TestDataCentersShareNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, partitions)
		of := func(dc string) func(*Config) {
			return func(cfg *Config) { cfg.DataCenter, cfg.Instance = dc, dc }
		}
		one, two := run(t, c, of("c001")), run(t, c, of("c002"))
		cl := c.Client(t)
		begun := time.Now()
		emit(t, cl, c.Topics.ETags.Name, "c001", sample("cam-1", eventv1.Status_OFFLINE))
		emit(t, cl, c.Topics.ETags.Name, "c002", sample("cam-2", eventv1.Status_OFFLINE))
		emit(t, cl, c.Topics.ETags.Name, "c003", sample("cam-3", eventv1.Status_OFFLINE))
		time.Sleep(100 * time.Second)
		one.stop()
		two.stop()
		one = run(t, c, of("c001"))
		time.Sleep(300 * time.Second)
		one.stop()
		told, _ := notified(t, c, begun)
		want := map[string]int{"PENDING OFFLINE cam-1 @0s": 1, "PENDING OFFLINE cam-2 @0s": 1, "DUE OFFLINE cam-1 @5m0s": 1}
		got := map[string]int{}
		for _, w := range told {
			got[w]++
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}

// TestBadRecordsBesideGoodOnes proves that records which cannot be handled go
// to the dead letters, and the good one behind them is told of (B57).
func TestBadRecordsBesideGoodOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, partitions)
		m := run(t, c, nil)
		cl := c.Client(t)
		home := kafka.PartitionFor("acme/cam-1", partitions)
		bad := []*kgo.Record{
			{Key: []byte("acme/cam-1"), Value: []byte{0xff, 0xff}},
			{Key: []byte("acme/cam-1"), Value: []byte{}},
			{Key: []byte("acme/cam-1"), Value: nil},
			{Value: []byte("no key")},
			{Key: []byte("acme/cam-1"), Value: []byte(`{"good":"json"}`)},
		}
		for _, rec := range bad {
			rec.Topic, rec.Partition = c.Topics.ETags.Name, home
			rec.Headers = []kgo.RecordHeader{{Key: kafka.HeaderType, Value: []byte(codec.TypeEvent)}}
			if err := cl.ProduceSync(context.Background(), rec).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		emit(t, cl, c.Topics.ETags.Name, "", sample("cam-1", eventv1.Status_OFFLINE))
		time.Sleep(5 * time.Second)
		m.stop()
		if told, _ := notified(t, c, begun); len(told) != 1 {
			t.Errorf("told %v", told)
		}
		if dead := records(t, c, c.Topics.DeadLetters.Name); len(dead) != len(bad) {
			t.Errorf("%d dead letters, want %d", len(dead), len(bad))
		}
	})
}
