package consume

import (
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/kafka"
)

// Headers of a dead letter, before those that the record had.
const (
	headerDeadTopic     = "dead-letter-topic"
	headerDeadPartition = "dead-letter-partition"
	headerDeadOffset    = "dead-letter-offset"
	headerDeadTime      = "dead-letter-append-time"
	headerDeadReason    = "dead-letter-reason"
)

// deadLetter is rec as it was, with its place and the reason in headers.
func deadLetter(to string, partitions int32, rec *kgo.Record, reason error) *kgo.Record {
	headers := []kgo.RecordHeader{
		{Key: headerDeadTopic, Value: []byte(rec.Topic)},
		{Key: headerDeadPartition, Value: strconv.AppendInt(nil, int64(rec.Partition), 10)},
		{Key: headerDeadOffset, Value: strconv.AppendInt(nil, rec.Offset, 10)},
		{Key: headerDeadTime, Value: []byte(rec.Timestamp.UTC().Format(time.RFC3339Nano))},
		{Key: headerDeadReason, Value: []byte(reason.Error())},
	}
	return &kgo.Record{
		Topic:     to,
		Partition: kafka.PartitionFor(string(rec.Key), partitions),
		Key:       rec.Key,
		Value:     rec.Value,
		Headers:   append(headers, rec.Headers...),
	}
}
