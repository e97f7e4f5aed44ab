package partition_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/twmb/franz-go/pkg/kgo"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/monitor/internal/device"
	"github.com/tocsin/tocsin/services/monitor/internal/partition"
)

// BenchmarkHandle is the cost of a record of the old mode, in which 98 of 100
// are repeats, against that of reading its bytes alone, in the same run. A
// transaction is 1,000 records.
func BenchmarkHandle(b *testing.B) {
	const devices, batch = 10_000, 1000
	r := rand.New(rand.NewPCG(11, 11))
	var recs []*kgo.Record
	for n := range 10 * devices {
		id := fmt.Sprintf("cam-%05d", n%devices)
		state := eventv1.Status_ONLINE
		if r.IntN(100) < 1 {
			state = eventv1.Status_OFFLINE
		}
		ev := status("acme", id, start+int64(n), state)
		ev.EventId, ev.SourceId, ev.SourceEpoch, ev.Sequence = fmt.Sprint("e", n), "archiver-1", "7", uint64(n/devices+1)
		recs = append(recs, record(b, ev))
	}
	one := kafka.PartitionFor("acme/cam-00000", 1)
	open := func() *partition.Partition {
		return partition.Open(partition.Options{Topics: topics, Defaults: device.DefaultRules, Tracer: tracenoop.NewTracerProvider().Tracer("")}, one, 1)
	}
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := codec.DecodeEvent(recs[i%len(recs)].Value); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("handle", func(b *testing.B) {
		p := open()
		b.ReportAllocs()
		var out []*kgo.Record
		for i := 0; b.Loop(); i++ {
			clock := at(int64(i / batch))
			p.Advance(clock)
			if err := p.Handle(recs[i%len(recs)], clock); err != nil {
				b.Fatal(err)
			}
			p.Advance(clock)
			if i%batch == batch-1 {
				out = p.Effects(out[:0])
				p.Commit()
			}
		}
	})
}

// BenchmarkRestore is the cost of restoring a device from its record.
func BenchmarkRestore(b *testing.B) {
	table := partition.NewTable(device.DefaultRules)
	step(table, entry{status("acme", "cam-1", start, eventv1.Status_ONLINE), start})
	value := table.Everything()["acme/cam-1"]
	b.ReportAllocs()
	b.SetBytes(int64(len(value)))
	restored := partition.NewTable(device.DefaultRules)
	for i := 0; b.Loop(); i++ {
		if err := restored.Restore(fmt.Appendf(nil, "acme/cam-%d", i%1_000_000), value); err != nil {
			b.Fatal(err)
		}
	}
}
