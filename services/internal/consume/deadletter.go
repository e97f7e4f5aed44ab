package consume

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/kafka"
)

// Reason is why a record is rejected: the closed set of a metric's label.
type Reason string

// The reasons.
const (
	NoKey          Reason = "no_key"
	NoType         Reason = "no_type"
	WrongType      Reason = "wrong_type"
	Unreadable     Reason = "unreadable"
	KeyDiffers     Reason = "key_differs"
	WrongPartition Reason = "wrong_partition"
)

// Reject gives an error of Handle its reason; one without is Unreadable.
func Reject(why Reason, err error) error { return &rejection{why, err} }

type rejection struct {
	why Reason
	error
}

func (r *rejection) Unwrap() error { return r.error }

func reasonOf(err error) Reason {
	var r *rejection
	if errors.As(err, &r) {
		return r.why
	}
	return Unreadable
}

// Headers of a dead letter, before those that the record had.
const (
	headerDeadTopic     = "dead-letter-topic"
	headerDeadPartition = "dead-letter-partition"
	headerDeadOffset    = "dead-letter-offset"
	headerDeadTime      = "dead-letter-append-time"
	headerDeadReason    = "dead-letter-reason"
	// headerDeadLeftOut is there when the record was too large to be kept
	// whole: how many bytes of value and headers it had. Its place tells where
	// it can still be read.
	headerDeadLeftOut = "dead-letter-left-out-bytes"
)

const (
	// deadLetterMost is the most of a record that is kept: a batch may have
	// 1,000,012 bytes in our client, 1,048,588 in the broker.
	deadLetterMost = 900_000
	// reasonMost bounds the reason, which quotes what it rejects.
	reasonMost = 1 << 10
)

// deadLetter is rec as it was, with its place and the reason in headers.
func deadLetter(to string, partitions int32, rec *kgo.Record, reason error) *kgo.Record {
	text := reason.Error()
	headers := []kgo.RecordHeader{
		{Key: headerDeadTopic, Value: []byte(rec.Topic)},
		{Key: headerDeadPartition, Value: strconv.AppendInt(nil, int64(rec.Partition), 10)},
		{Key: headerDeadOffset, Value: strconv.AppendInt(nil, rec.Offset, 10)},
		{Key: headerDeadTime, Value: []byte(rec.Timestamp.UTC().Format(time.RFC3339Nano))},
		{Key: headerDeadReason, Value: []byte(text[:min(len(text), reasonMost)])},
	}
	dead := &kgo.Record{
		Topic:     to,
		Partition: kafka.PartitionFor(string(rec.Key), partitions),
		Key:       rec.Key,
		Value:     rec.Value,
	}
	size := len(rec.Key) + len(rec.Value)
	for _, h := range rec.Headers {
		size += len(h.Key) + len(h.Value)
	}
	if size <= deadLetterMost {
		dead.Headers = slices.Concat(headers, rec.Headers)
		return dead
	}
	dead.Key, dead.Value = rec.Key[:min(len(rec.Key), reasonMost)], nil
	dead.Headers = slices.Concat(headers, []kgo.RecordHeader{{Key: headerDeadLeftOut, Value: strconv.AppendInt(nil, int64(size), 10)}})
	return dead
}
