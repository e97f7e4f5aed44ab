package broker

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	attrTransactional = 1 << 4
	attrControl       = 1 << 5
	// Of the broker's index file: one entry a batch, the second byte the low
	// byte of the CRC-32C of what follows it, the last whether the batch waits
	// for the end of its transaction.
	indexEntry  = 15
	indexCRCAt  = 1
	indexOpenAt = indexEntry - 1
)

// transaction names one: with KIP-890 each has an epoch of its own.
type transaction struct {
	producer int64
	epoch    int16
}

// tail is what the end of a partition's log says.
type tail struct {
	path string // of the last segment
	next int64  // offset
	// batches in the last segment, whole ones.
	batches int
	// open are transactions with records and no end.
	open map[transaction]bool
}

// closeTransactions ends what a crash left open, before the broker reads the
// directory: it would take such a transaction for aborted, but write no marker,
// and a reader of committed records would wait for its end for ever, or throw
// away what the same producer wrote afterwards. One that has its commit in any
// partition is committed in all, the others are aborted. It must run after
// verify, on a directory that no broker uses.
func closeTransactions(dir string) error {
	logs, err := segments(dir)
	if err != nil {
		return err
	}
	var tails []*tail
	committed := map[transaction]bool{}
	for _, paths := range logs {
		t, err := readTail(paths, committed)
		if err != nil {
			return err
		}
		if len(t.open) > 0 {
			tails = append(tails, t)
		}
	}
	for _, t := range tails {
		if err := t.close(committed); err != nil {
			return err
		}
	}
	return nil
}

func readTail(paths []string, committed map[transaction]bool) (*tail, error) {
	t := &tail{open: map[transaction]bool{}}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a log: %w", err)
		}
		t.path, t.batches = path, 0
		for at := 0; at < len(data); {
			size, ok := batch(data[at:])
			if !ok {
				break // verify has seen it: a cut last write
			}
			var b kmsg.RecordBatch
			if err := b.ReadFrom(data[at : at+size]); err != nil {
				return nil, fmt.Errorf("%s at byte %d: %w", path, at, err)
			}
			at += size
			t.batches++
			t.next = b.FirstOffset + int64(b.LastOffsetDelta) + 1
			t.follow(&b, committed)
		}
	}
	return t, nil
}

// follow takes note of what b says of its transaction.
func (t *tail) follow(b *kmsg.RecordBatch, committed map[transaction]bool) {
	if b.Attributes&attrTransactional == 0 {
		return
	}
	id := transaction{b.ProducerID, b.ProducerEpoch}
	if b.Attributes&attrControl == 0 {
		t.open[id] = true
		return
	}
	for open := range t.open {
		if open.producer == id.producer {
			delete(t.open, open)
		}
	}
	var rec kmsg.Record
	var key kmsg.ControlRecordKey
	if rec.ReadFrom(b.Records) == nil && key.ReadFrom(rec.Key) == nil && key.Type == kmsg.ControlRecordKeyTypeCommit {
		committed[id] = true
	}
}

// close appends a marker for each open transaction, and its index entry.
func (t *tail) close(committed map[transaction]bool) error {
	indexPath := strings.TrimSuffix(t.path, segmentSuffix) + ".idx"
	index, err := os.ReadFile(indexPath)
	if err != nil {
		return fmt.Errorf("read an index: %w", err)
	}
	if len(index) < t.batches*indexEntry || t.batches == 0 {
		return fmt.Errorf("%s has fewer entries than its log has batches", indexPath)
	}
	index = index[:t.batches*indexEntry]
	data, err := os.ReadFile(t.path)
	if err != nil {
		return fmt.Errorf("read a log: %w", err)
	}
	whole, _ := intact(data)
	data = data[:whole]
	ids := make([]transaction, 0, len(t.open))
	for id := range t.open {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b transaction) int { return int(a.producer - b.producer) })
	for _, id := range ids {
		data = append(data, marker(id, t.next, committed[id])...)
		t.next++
		entry := slices.Clone(index[len(index)-indexEntry:])
		entry[indexOpenAt] = 0
		entry[indexCRCAt] = byte(crc32.Checksum(entry[indexCRCAt+1:], castagnoli))
		index = append(index, entry...)
	}
	// The index first: entries without a batch are cut off at the next start.
	if err := replace(indexPath, index); err != nil {
		return err
	}
	return replace(t.path, data)
}

// marker is the control batch that ends a transaction at offset (KIP-98).
func marker(id transaction, offset int64, commit bool) []byte {
	key := kmsg.ControlRecordKey{Type: kmsg.ControlRecordKeyTypeAbort}
	if commit {
		key.Type = kmsg.ControlRecordKeyTypeCommit
	}
	end := kmsg.EndTxnMarker{}
	rec := kmsg.Record{Key: key.AppendTo(nil), Value: end.AppendTo(nil)}
	rec.Length = int32(len(rec.AppendTo(nil)) - 1) // itself a varint of one byte
	now := time.Now().UnixMilli()
	b := kmsg.RecordBatch{
		FirstOffset: offset, PartitionLeaderEpoch: -1, Magic: 2,
		Attributes:     attrTransactional | attrControl,
		FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: id.producer, ProducerEpoch: id.epoch, FirstSequence: -1,
		NumRecords: 1, Records: rec.AppendTo(nil),
	}
	out := b.AppendTo(nil)
	binary.BigEndian.PutUint32(out[lengthAt:], uint32(len(out)-lengthOf))
	binary.BigEndian.PutUint32(out[crcAt:], crc32.Checksum(out[crcOf:], castagnoli))
	return out
}

// replace writes a file whole or not at all.
func replace(path string, data []byte) error {
	part := path + ".tmp"
	if err := os.WriteFile(part, data, 0o600); err != nil {
		return fmt.Errorf("end a transaction that a crash left open: %w", err)
	}
	if err := os.Rename(part, path); err != nil {
		return fmt.Errorf("end a transaction that a crash left open: %w", err)
	}
	return nil
}
