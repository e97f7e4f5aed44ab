package gateway

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
	"github.com/tocsin/tocsin/services/gateway/internal/ledger"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
)

// facts appends what the relay did to the account's log: idempotent, in no
// transaction, whoever owns the partition by now. It implements mailer.Facts.
type facts struct {
	client *kgo.Client
	topic  string
	// partitions is the topic's count. The runtime checks it before it opens a
	// partition, and nothing is sent before that.
	partitions atomic.Int32
}

func newFacts(env lifecycle.Env, topic string) (*facts, error) {
	client, err := kgo.NewClient(append(env.Kafka.Options(env.Net.Dial),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0),
	)...)
	if err != nil {
		return nil, fmt.Errorf("make the client for results: %w", err)
	}
	return &facts{client: client, topic: topic}, nil
}

func (f *facts) close() { f.client.Close() }

// Result returns once the result is in the log.
func (f *facts) Result(ctx context.Context, r *outboxv1.Result) error {
	return f.append(ctx, r.GetAccountId(), ledger.TypeResult, r)
}

// Renew returns once the renewal is in the log.
func (f *facts) Renew(ctx context.Context, r *outboxv1.Renewal) error {
	return f.append(ctx, r.GetAccountId(), ledger.TypeRenewal, r)
}

func (f *facts) append(ctx context.Context, account, kind string, m interface{ MarshalVT() ([]byte, error) }) error {
	value, err := m.MarshalVT()
	if err != nil {
		return fmt.Errorf("encode %s: %w", kind, err)
	}
	rec := &kgo.Record{
		Topic: f.topic, Partition: kafka.PartitionFor(account, f.partitions.Load()), Key: []byte(account), Value: value,
		Headers: []kgo.RecordHeader{{Key: kafka.HeaderType, Value: []byte(kind)}},
	}
	if err := f.client.ProduceSync(ctx, rec).FirstErr(); err != nil {
		return fmt.Errorf("append %s to %s partition %d: %w", kind, rec.Topic, rec.Partition, err)
	}
	return nil
}
