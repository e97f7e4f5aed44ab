package harness

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Broker is a Kafka with names for one test's own, empty at first.
type Broker struct {
	// Name is "kfake" or "kafka".
	Name string
	// Address is host:port for clients on this machine.
	Address string
	// Prefix is what the names of all topics of the test begin with.
	Prefix string

	t testing.TB
}

// OnEachBroker runs the test once on kfake and once on Apache Kafka: what
// holds on one must hold on the other.
func OnEachBroker(t *testing.T, test func(*testing.T, *Broker)) {
	t.Run("kfake", func(t *testing.T) {
		t.Parallel()
		test(t, StartKfake(t))
	})
	t.Run("kafka", func(t *testing.T) {
		NeedContainers(t)
		t.Parallel()
		test(t, ShareKafka(t))
	})
}

// StartKfake starts franz-go's broker in this process, on loopback.
func StartKfake(t testing.TB) *Broker {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(0))
	if err != nil {
		t.Fatalf("start kfake: %v", err)
	}
	t.Cleanup(c.Close)
	return &Broker{Name: "kfake", Address: c.ListenAddrs()[0], Prefix: "tocsin.", t: t}
}

// Topic is the full name of one of Tocsin's topics, such as "etags".
func (b *Broker) Topic(name string) string { return b.Prefix + name }

// Flags make a program of ours use this broker and these names.
func (b *Broker) Flags() []string {
	return []string{"--kafka.brokers", b.Address, "--kafka.topic-prefix", b.Prefix}
}

// Client is a client of the broker that is closed with the test.
func (b *Broker) Client(opts ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Address)}, opts...)...)
	if err != nil {
		b.t.Fatalf("make a client of %s: %v", b.Name, err)
	}
	b.t.Cleanup(cl.Close)
	return cl
}

// Records are all committed records that a topic holds now, in order within
// each partition.
func (b *Broker) Records(topic string) []*kgo.Record {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Address), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(50*time.Millisecond), kgo.KeepControlRecords())
	if err != nil {
		b.t.Fatalf("read %s: %v", topic, err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		b.t.Fatalf("read %s: ask for its end: %v", topic, err)
	}
	left := make(map[int32]int64)
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			left[end.Partition] = end.Offset
		}
	})
	var records []*kgo.Record
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			b.t.Fatalf("read %s: %v still to read, %v", topic, left, err)
		}
		fetches.EachError(func(_ string, partition int32, err error) {
			b.t.Logf("read %s partition %d: %v", topic, partition, err)
		})
		fetches.EachRecord(func(rec *kgo.Record) {
			if !rec.Attrs.IsControl() {
				records = append(records, rec)
			}
			if end, ok := left[rec.Partition]; ok && rec.Offset+1 >= end {
				delete(left, rec.Partition)
			}
		})
	}
	return records
}

// Header is the value of a record's header, or "".
func Header(rec *kgo.Record, name string) string {
	for _, h := range rec.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// probe produces one record and reads it back: only then does a broker work.
func (b *Broker) probe(ctx context.Context) error {
	const topic = "harness.probe"
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Address), kgo.ConsumeTopics(topic), kgo.AllowAutoTopicCreation(),
		kgo.DialTimeout(time.Second), kgo.RequestTimeoutOverhead(2*time.Second), kgo.RecordDeliveryTimeout(2*time.Second),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	if _, err := adm.CreateTopic(ctx, 1, 1, nil, topic); err != nil && !isExists(err) {
		return fmt.Errorf("create a topic: %w", err)
	}
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("ready?")}).FirstErr(); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	fetches := cl.PollFetches(ctx)
	if err := fetches.Err(); err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	if _, err := adm.DeleteTopic(ctx, topic); err != nil {
		return fmt.Errorf("delete the topic: %w", err)
	}
	return nil
}
