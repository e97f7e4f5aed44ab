package consume_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
	"github.com/tocsin/tocsin/services/internal/consume"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/kafkatest"
)

const hold = 300 * time.Second

// fakeMachine is the smallest machine that has all the runtime asks for: a
// record "arm" sets its key's deadline, "more" puts it off by 10 s (so that it
// shows when a record is stepped twice), "disarm" takes it away, at the
// deadline one effect goes out. Values in the state topic are deadlines in ms, 0 is none.
type fakeMachine struct {
	c         *kafkatest.Cluster
	partition int32
	hold      time.Duration

	deadlines map[string]time.Time
	before    map[string]time.Time
	changed   map[string]bool
	out       []string
}

func (f *fakeMachine) Restore(rec *kgo.Record) error {
	if len(rec.Value) != 8 {
		return fmt.Errorf("a deadline has 8 bytes, not %d", len(rec.Value))
	}
	if ms := binary.BigEndian.Uint64(rec.Value); ms == 0 {
		delete(f.deadlines, string(rec.Key))
	} else {
		f.deadlines[string(rec.Key)] = time.UnixMilli(int64(ms))
	}
	return nil
}

func (f *fakeMachine) Setting(rec *kgo.Record) error {
	d, err := time.ParseDuration(string(rec.Value))
	if err == nil {
		f.hold = d
	}
	return err
}

func (f *fakeMachine) set(key string, at time.Time) {
	if !f.changed[key] {
		f.changed[key] = true
		f.before[key] = f.deadlines[key]
	}
	if at.IsZero() {
		delete(f.deadlines, key)
	} else {
		f.deadlines[key] = at
	}
}

func (f *fakeMachine) Advance(clock time.Time) {
	for key, at := range f.deadlines {
		if !at.After(clock) {
			f.out = append(f.out, fmt.Sprintf("%s@%d", key, at.UnixMilli()))
			f.set(key, time.Time{})
		}
	}
}

func (f *fakeMachine) Handle(rec *kgo.Record, clock time.Time) error {
	switch string(rec.Value) {
	case "arm":
		f.set(string(rec.Key), clock.Add(f.hold))
	case "more":
		f.set(string(rec.Key), f.deadlines[string(rec.Key)].Add(10*time.Second))
	case "disarm":
		f.set(string(rec.Key), time.Time{})
	default:
		return fmt.Errorf("neither arm nor disarm: %q", rec.Value)
	}
	return nil
}

func (f *fakeMachine) Tick(time.Time) {}

func (f *fakeMachine) Due() (at time.Time, ok bool) {
	for _, d := range f.deadlines {
		if !ok || d.Before(at) {
			at, ok = d, true
		}
	}
	return at, ok
}

func (f *fakeMachine) Effects(out []*kgo.Record) []*kgo.Record {
	for key := range f.changed {
		var value [8]byte
		if at := f.deadlines[key]; !at.IsZero() {
			binary.BigEndian.PutUint64(value[:], uint64(at.UnixMilli()))
		}
		out = append(out, &kgo.Record{Topic: f.c.Topics.DeviceState.Name, Partition: f.partition, Key: []byte(key), Value: value[:]})
	}
	for _, o := range f.out {
		out = append(out, &kgo.Record{Topic: f.c.Topics.Notifications.Name, Partition: 0, Value: []byte(o)})
	}
	return out
}

func (f *fakeMachine) Commit() { f.reset() }

func (f *fakeMachine) Abort() {
	for key, at := range f.before {
		if at.IsZero() {
			delete(f.deadlines, key)
		} else {
			f.deadlines[key] = at
		}
	}
	f.reset()
}

func (f *fakeMachine) reset() {
	f.before, f.changed, f.out = map[string]time.Time{}, map[string]bool{}, nil
}

func (f *fakeMachine) Close() {}

func config(c *kafkatest.Cluster, instance string) consume.Config {
	return consume.Config{
		Group: "machines", Instance: instance,
		Log:         c.Topics.ETags,
		State:       c.Topics.DeviceGroup()[2:],
		Settings:    c.Topics.DeviceGroup()[1:2],
		DeadLetters: c.Topics.DeadLetters,
		Open: func(partition, _ int32) consume.Partition {
			f := &fakeMachine{c: c, partition: partition, hold: hold, deadlines: map[string]time.Time{}}
			f.reset()
			return f
		},
	}
}

// start runs a group until the test's end or stop is called, whichever is first.
func start(t *testing.T, c *kafkatest.Cluster, cfg consume.Config) (g *consume.Group, stop func()) {
	t.Helper()
	g, err := consume.New(cfg, c.Env(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return g, stop
}

func ready(t *testing.T, g *consume.Group) {
	t.Helper()
	for range 300 {
		if g.Ready() == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("not ready after 30 s: %v", g.Ready())
}

func send(t *testing.T, cl *kgo.Client, topic string, partition int32, key, value string, headers ...kgo.RecordHeader) {
	t.Helper()
	rec := &kgo.Record{Topic: topic, Partition: partition, Key: []byte(key), Value: []byte(value), Headers: headers}
	if err := cl.ProduceSync(context.Background(), rec).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// committed returns the committed values of a topic so far.
func committed(t *testing.T, c *kafkatest.Cluster, topic string) []*kgo.Record {
	t.Helper()
	cl := c.Client(t, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	defer cl.Close()
	var out []*kgo.Record
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		f := cl.PollFetches(ctx)
		cancel()
		if f.NumRecords() == 0 {
			return out
		}
		out = append(out, f.Records()...)
	}
}

func values(recs []*kgo.Record) []string {
	var out []string
	for _, r := range recs {
		out = append(out, string(r.Value))
	}
	return out
}

// A hold on a partition where nothing else happens fires once, within a second
// of its deadline, because of a tick (rule T3).
func TestHoldFiresInSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 2)
		g, _ := start(t, c, config(c, "one"))
		ready(t, g)
		armed := time.Now()
		send(t, c.Client(t), c.Topics.ETags.Name, 1, "acme/cam-1", "arm")
		time.Sleep(hold - 5*time.Second)
		if got := committed(t, c, c.Topics.Notifications.Name); len(got) != 0 {
			t.Fatalf("before the deadline: %v", values(got))
		}
		time.Sleep(time.Until(armed.Add(hold + time.Second)))
		got := committed(t, c, c.Topics.Notifications.Name)
		want := []string{fmt.Sprintf("acme/cam-1@%d", armed.Add(hold).UnixMilli())}
		if diff := cmp.Diff(want, values(got)); diff != "" {
			t.Fatalf("effects (-want +got):\n%s", diff)
		}
		if late := got[0].Timestamp.Sub(armed.Add(hold)); late > time.Second {
			t.Errorf("%s late", late)
		}
	})
}

// A hold survives a clean stop and a move to another instance, and fires at
// its original time (cases B01); no tick storm comes of it.
func TestHoldMovesWithItsPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 2)
		g, stop := start(t, c, config(c, "one"))
		ready(t, g)
		armed := time.Now()
		send(t, c.Client(t), c.Topics.ETags.Name, 1, "acme/cam-1", "arm")
		time.Sleep(2 * time.Minute)
		stop()
		g, _ = start(t, c, config(c, "two"))
		ready(t, g)
		time.Sleep(time.Until(armed.Add(hold + time.Second)))
		want := []string{fmt.Sprintf("acme/cam-1@%d", armed.Add(hold).UnixMilli())}
		if diff := cmp.Diff(want, values(committed(t, c, c.Topics.Notifications.Name))); diff != "" {
			t.Fatalf("effects (-want +got):\n%s", diff)
		}
		time.Sleep(time.Minute)
		if n := len(committed(t, c, c.Topics.ETags.Name)); n > 8 {
			t.Errorf("%d records in the log; one event and a few ticks were to be there", n)
		}
	})
}

// A transaction that is not committed is taken back whole, clock and tick state
// too: its records are stepped again and their effects come out once.
func TestAbortTakesEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		g, _ := start(t, c, config(c, "one"))
		ready(t, g)
		armed := time.Now()
		send(t, c.Client(t), c.Topics.ETags.Name, 0, "acme/cam-1", "arm")
		time.Sleep(hold - 10*time.Second)
		refused := refuseCommits(c, 3)
		send(t, c.Client(t), c.Topics.ETags.Name, 0, "acme/cam-1", "more")
		time.Sleep(5 * time.Second)
		time.Sleep(20 * time.Second)
		if refused.Load() < 3 {
			t.Fatalf("only %d commits were refused: nothing was tried", refused.Load())
		}
		want := []string{fmt.Sprintf("acme/cam-1@%d", armed.Add(hold+10*time.Second).UnixMilli())}
		if diff := cmp.Diff(want, values(committed(t, c, c.Topics.Notifications.Name))); diff != "" {
			t.Fatalf("effects (-want +got):\n%s", diff)
		}
	})
}

// refuseCommits has the broker refuse the next n offset commits of transactions.
func refuseCommits(c *kafkatest.Cluster, n int32) (refused *atomic.Int32) {
	refused = new(atomic.Int32)
	c.ControlKey(int16(kmsg.TxnOffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if refused.Load() == n {
			return nil, nil, false
		}
		refused.Add(1)
		c.KeepControl()
		r := req.(*kmsg.TxnOffsetCommitRequest)
		resp := r.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
		for _, rt := range r.Topics {
			t := kmsg.NewTxnOffsetCommitResponseTopic()
			t.Topic = rt.Topic
			for _, rp := range rt.Partitions {
				p := kmsg.NewTxnOffsetCommitResponseTopicPartition()
				p.Partition, p.ErrorCode = rp.Partition, kerr.IllegalGeneration.Code
				t.Partitions = append(t.Partitions, p)
			}
			resp.Topics = append(resp.Topics, t)
		}
		return resp, nil, true
	})
	return refused
}

// When the group's offsets are lost, the log is not stepped again: what was
// handled is in the state, also if the first transaction after it is aborted.
func TestLostGroupOffsetRepeatsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		cl := c.Client(t)
		g, stop := start(t, c, config(c, "one"))
		ready(t, g)
		armed := time.Now()
		send(t, cl, c.Topics.ETags.Name, 0, "acme/cam-1", "arm")
		send(t, cl, c.Topics.ETags.Name, 0, "acme/cam-1", "more")
		time.Sleep(time.Second)
		stop()
		if _, err := kadm.NewClient(cl).DeleteGroups(context.Background(), "machines"); err != nil {
			t.Fatal(err)
		}
		refuseCommits(c, 1)
		g, _ = start(t, c, config(c, "one"))
		ready(t, g)
		time.Sleep(time.Until(armed.Add(hold + 30*time.Second)))
		want := []string{fmt.Sprintf("acme/cam-1@%d", armed.Add(hold+10*time.Second).UnixMilli())}
		if diff := cmp.Diff(want, values(committed(t, c, c.Topics.Notifications.Name))); diff != "" {
			t.Fatalf("effects (-want +got):\n%s", diff)
		}
	})
}

// With instances coming and going under load, every arm has its one effect.
func TestEachEffectOnceThroughRebalances(t *testing.T) {
	kafkatest.NeedsSwappedMutexes(t)
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 4)
		cl := c.Client(t)
		short := func(instance string, members int) consume.Config {
			cfg := config(c, instance)
			cfg.Members = members
			open := cfg.Open
			cfg.Open = func(partition, partitions int32) consume.Partition {
				p := open(partition, partitions)
				p.(*fakeMachine).hold = 20 * time.Second
				return p
			}
			return cfg
		}
		g, _ := start(t, c, short("stays", 1))
		ready(t, g)
		const n = 160
		want := map[string]int{}
		for i := range n {
			key := fmt.Sprintf("acme/cam-%d", i)
			send(t, cl, c.Topics.ETags.Name, int32(i%4), key, "arm")
			want[key] = 1
			time.Sleep(200 * time.Millisecond)
			if i%50 == 20 {
				_, stop := start(t, c, short(fmt.Sprintf("guest-%d", i), 2))
				time.AfterFunc(8*time.Second, stop)
			}
		}
		time.Sleep(40 * time.Second)
		got := map[string]int{}
		for _, v := range values(committed(t, c, c.Topics.Notifications.Name)) {
			key, _, _ := strings.Cut(v, "@")
			got[key]++
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("effects (-want +got):\n%s", diff)
		}
	})
}

// What Handle rejects goes to the dead letters with its place and the reason,
// and the good record behind it is handled at once (case B57).
func TestRejectedRecordsAreDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		cl := c.Client(t)
		cfg := config(c, "one")
		g, _ := start(t, c, cfg)
		ready(t, g)
		send(t, cl, c.Topics.ETags.Name, 0, "acme/cam-1", "\xff\xff", kgo.RecordHeader{Key: "type", Value: []byte("x")})
		send(t, cl, c.Topics.ETags.Name, 0, "acme/cam-1", "arm")
		time.Sleep(time.Second)
		dead := committed(t, c, c.Topics.DeadLetters.Name)
		if len(dead) != 1 {
			t.Fatalf("%d dead letters, want 1", len(dead))
		}
		got := map[string]string{"key": string(dead[0].Key), "value": string(dead[0].Value)}
		for _, h := range dead[0].Headers {
			got[h.Key] = string(h.Value)
		}
		delete(got, "dead-letter-append-time")
		if diff := cmp.Diff(map[string]string{
			"key": "acme/cam-1", "value": "\xff\xff", "type": "x",
			"dead-letter-topic": "tocsin.etags", "dead-letter-partition": "0", "dead-letter-offset": "1",
			"dead-letter-reason": `neither arm nor disarm: "\xff\xff"`,
		}, got); diff != "" {
			t.Errorf("dead letter (-want +got):\n%s", diff)
		}
		if n := len(committed(t, c, c.Topics.DeviceState.Name)); n < 2 {
			t.Errorf("%d state records: the good event behind it was not handled", n)
		}
	})
}

// A rejected record that is as large as a record can be does not stop its
// partition: the dead letter leaves the value out and says so.
func TestLargestRejectedRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		cl := c.Client(t)
		g, _ := start(t, c, config(c, "one"))
		ready(t, g)
		send(t, cl, c.Topics.ETags.Name, 0, "acme/cam-1", strings.Repeat("x", 999_800))
		send(t, cl, c.Topics.ETags.Name, 0, "acme/cam-1", "arm")
		time.Sleep(hold + 10*time.Second)
		dead := committed(t, c, c.Topics.DeadLetters.Name)
		if len(dead) != 1 || len(dead[0].Value) != 0 || kafka.Header(dead[0], "dead-letter-left-out-bytes") != "999810" {
			t.Fatalf("dead letters: %d, want one without its 999,810 bytes", len(dead))
		}
		if got := values(committed(t, c, c.Topics.Notifications.Name)); len(got) != 1 {
			t.Fatalf("the record behind it had the effects %v", got)
		}
	})
}

// An effect that the client itself refuses takes its transaction back: nothing
// of it is committed. When it is no longer refused, all goes on, and the ticks
// that former lives of the member left unread are not taken for its own.
func TestRefusedEffectIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		cl := c.Client(t)
		cfg := config(c, "one")
		open := cfg.Open
		var large atomic.Bool
		large.Store(true)
		cfg.Open = func(partition, partitions int32) consume.Partition {
			return &swollen{Partition: open(partition, partitions), large: &large, topic: c.Topics.Notifications.Name}
		}
		g, _ := start(t, c, cfg)
		ready(t, g)
		armed := time.Now()
		send(t, cl, c.Topics.ETags.Name, 0, "acme/cam-1", "arm")
		time.Sleep(time.Minute)
		if n := len(committed(t, c, c.Topics.DeviceState.Name)); n > 1 {
			t.Errorf("%d state records, want none but the position at the first tick", n)
		}
		large.Store(false)
		time.Sleep(time.Until(armed.Add(hold + 10*time.Second)))
		want := []string{fmt.Sprintf("acme/cam-1@%d", armed.Add(hold).UnixMilli())}
		if diff := cmp.Diff(want, values(committed(t, c, c.Topics.Notifications.Name))); diff != "" {
			t.Fatalf("effects (-want +got):\n%s", diff)
		}
	})
}

// swollen adds an effect that is too large for any batch to those of an event.
type swollen struct {
	consume.Partition
	large   *atomic.Bool
	topic   string
	handled bool
}

func (s *swollen) Handle(rec *kgo.Record, clock time.Time) error {
	s.handled = true
	return s.Partition.Handle(rec, clock)
}

func (s *swollen) Effects(out []*kgo.Record) []*kgo.Record {
	out = s.Partition.Effects(out)
	if s.handled && s.large.Load() {
		out = append(out, &kgo.Record{Topic: s.topic, Value: make([]byte, 2<<20)})
	}
	s.handled = false
	return out
}

// A log that is shorter than what was handled, cut by a crash or made anew, is
// gone on with from its end: ticks and events work.
func TestLogShorterThanState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		cl := c.Client(t)
		position, err := (&statev1.Position{NextOffset: 50, ClockUnixMs: time.Now().UnixMilli()}).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		send(t, cl, c.Topics.DeviceState.Name, 0, "@position", string(position))
		g, _ := start(t, c, config(c, "one"))
		ready(t, g)
		send(t, cl, c.Topics.ETags.Name, 0, "acme/cam-1", "arm")
		time.Sleep(hold + 2*time.Second)
		if got := values(committed(t, c, c.Topics.Notifications.Name)); len(got) != 1 {
			t.Fatalf("effects %v, want one", got)
		}
	})
}

// A partition with a backlog is not ready until it is handled.
func TestNotReadyWhileCatchingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		send(t, c.Client(t), c.Topics.ETags.Name, 0, "acme/cam-1", "arm")
		var stuck atomic.Bool
		stuck.Store(true)
		c.ControlKey(int16(kmsg.TxnOffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			if stuck.Load() {
				c.SleepControl(func() { time.Sleep(3 * time.Second) })
			}
			return nil, nil, false
		})
		g, _ := start(t, c, config(c, "one"))
		time.Sleep(2 * time.Second)
		if err := g.Ready(); err == nil || !strings.Contains(err.Error(), "catching up") {
			t.Errorf("with the backlog not handled, ready says %v", err)
		}
		stuck.Store(false)
		ready(t, g)
	})
}

// Where there are no dead letters to write, the start is refused by name.
func TestDeadLettersMustExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		cfg := config(c, "one")
		cfg.DeadLetters.Name = "tocsin.absent"
		g, err := consume.New(cfg, c.Env(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "tocsin.absent does not exist") {
			t.Fatalf("run: %v", err)
		}
	})
}

// Settings that exist are known before the first event, later ones are
// followed, and a key prefix keeps two deployments' states apart.
func TestSettingsAndKeyPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		cl := c.Client(t)
		settings := c.Topics.DeviceSettings.Name
		send(t, cl, settings, 0, "acme/cam-1", "10s")
		send(t, cl, c.Topics.DeviceState.Name, 0, "c002!acme/cam-9", "bytes of another deployment")
		send(t, cl, c.Topics.ETags.Name, 0, "acme/first", "arm")
		cfg := config(c, "one")
		cfg.KeyPrefix = "c001!"
		begun := time.Now()
		g, _ := start(t, c, cfg)
		ready(t, g)
		time.Sleep(12 * time.Second)
		if got := values(committed(t, c, c.Topics.Notifications.Name)); len(got) != 1 {
			t.Fatalf("with a setting of 10 s, after %s: %v", time.Since(begun), got)
		}
		send(t, cl, settings, 0, "acme/cam-1", "nonsense") // stays as it was
		send(t, cl, settings, 0, "acme/cam-1", "20s")
		time.Sleep(time.Second)
		send(t, cl, c.Topics.ETags.Name, 0, "acme/second", "arm")
		time.Sleep(15 * time.Second)
		if got := values(committed(t, c, c.Topics.Notifications.Name)); len(got) != 1 {
			t.Fatalf("the new setting of 20 s was not followed: %v", got)
		}
		time.Sleep(10 * time.Second)
		if got := values(committed(t, c, c.Topics.Notifications.Name)); len(got) != 2 {
			t.Fatalf("after 25 s: %v", got)
		}
		// The deployment without a filter leaves those of others alone too.
		plain := config(c, "two")
		plain.Group = "unfiltered"
		g, _ = start(t, c, plain)
		ready(t, g)
		for _, r := range committed(t, c, c.Topics.DeviceState.Name) {
			if key := string(r.Key); key != "@position" && !strings.HasPrefix(key, "acme/") && !strings.HasPrefix(key, "c00") {
				t.Errorf("state key %q has no prefix", r.Key)
			}
		}
	})
}

// Skipped records are not handled, but time passes with them (design: records
// that are skipped move the clock too).
func TestSkippedRecordsMoveTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 1)
		cl := c.Client(t)
		cfg := config(c, "one")
		cfg.Skip = func(rec *kgo.Record) bool { return kafka.Header(rec, kafka.HeaderDataCenter) == "c002" }
		g, _ := start(t, c, cfg)
		ready(t, g)
		foreign := kgo.RecordHeader{Key: kafka.HeaderDataCenter, Value: []byte("c002")}
		send(t, cl, c.Topics.ETags.Name, 0, "acme/cam-1", "arm")
		send(t, cl, c.Topics.ETags.Name, 0, "acme/cam-1", "garbage", foreign)
		send(t, cl, c.Topics.ETags.Name, 0, "acme/cam-1", "disarm", foreign)
		time.Sleep(hold + time.Second)
		if got := values(committed(t, c, c.Topics.Notifications.Name)); len(got) != 1 {
			t.Fatalf("effects %v, want one", got)
		}
		if dead := committed(t, c, c.Topics.DeadLetters.Name); len(dead) != 0 {
			t.Fatalf("%d dead letters of skipped records", len(dead))
		}
	})
}

// State that cannot be read keeps the partition waiting, named, and not ready;
// the other partition works on.
func TestDamagedStateIsNotTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 2)
		cl := c.Client(t)
		send(t, cl, c.Topics.DeviceState.Name, 0, "acme/cam-1", "three")
		g, _ := start(t, c, config(c, "one"))
		send(t, cl, c.Topics.ETags.Name, 1, "acme/cam-2", "arm")
		time.Sleep(hold + 30*time.Second)
		if got := values(committed(t, c, c.Topics.Notifications.Name)); len(got) != 1 {
			t.Fatalf("effects %v, want that of the sound partition", got)
		}
		if err := g.Ready(); err == nil || !strings.Contains(err.Error(), "partition 0") {
			t.Fatalf("ready says %v, want partition 0 named", err)
		}
	})
}

// Topics that are not fit end the process with a plain message.
func TestUnequalPartitionCountsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 2)
		cfg := config(c, "one")
		cfg.Others = append(cfg.Others, c.Topics.Outbox)
		cfg.Others[0].Name = "tocsin.absent"
		g, err := consume.New(cfg, c.Env(t))
		if err != nil {
			t.Fatal(err)
		}
		var unfit *kafka.UnfitError
		if err := g.Run(context.Background()); !errors.As(err, &unfit) {
			t.Fatalf("run: %v, want an UnfitError", err)
		}
	})
}
