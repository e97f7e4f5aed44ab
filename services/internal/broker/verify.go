package broker

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Layout of a record batch, format 2 (KIP-98): base offset 8 bytes, length 4,
// leader epoch 4, magic 1, CRC-32C 4, then what the CRC covers.
const (
	lengthAt = 8
	lengthOf = 12 // what the length counts begins here
	magicAt  = 16
	magic    = 2
	crcAt    = 17
	crcOf    = 21
	// tornMost is the most that a cut write may leave at the end of a log:
	// one batch (message.max.bytes is 1,048,588 by default).
	tornMost = 1 << 21
)

// verify reads every log of the broker's directory before the broker does,
// because the broker cuts a log at the first batch it cannot read, and all
// behind it would be lost without a word. What a crash leaves is no damage: the
// last batch of the last segment, cut short. A missing directory is a new one.
func verify(dir string) error {
	logs, err := segments(dir)
	if err != nil {
		return err
	}
	for _, name := range []string{"meta.json", "topics.json"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		switch {
		case os.IsNotExist(err) && len(logs) > 0:
			return fmt.Errorf("%s is missing, and there are logs", name)
		case err != nil && !os.IsNotExist(err):
			return fmt.Errorf("read %s: %w", name, err)
		case err == nil && !json.Valid(data):
			return fmt.Errorf("%s is damaged: it is no JSON", name)
		}
	}
	for _, paths := range logs {
		for i, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("read a log: %w", err)
			}
			at, whole := intact(data)
			stopped := sizeAtStop(path) == int64(len(data)) // nothing was written since
			if whole || i == len(paths)-1 && !stopped && torn(data[at:]) {
				continue
			}
			rel, _ := filepath.Rel(dir, path)
			return fmt.Errorf("%s is damaged at byte %d", rel, at)
		}
	}
	return nil
}

// sizeAtStop is how large a segment was when the broker last stopped cleanly,
// by the snapshot beside it; 0 if that is not known.
func sizeAtStop(path string) int64 {
	var snapshot struct {
		Segments []struct {
			BaseOffset int64 `json:"base_offset"`
			Size       int64 `json:"size"`
		} `json:"segments"`
	}
	data, err := os.ReadFile(filepath.Join(filepath.Dir(path), "snapshot.json"))
	if err != nil || json.Unmarshal(data, &snapshot) != nil {
		return 0
	}
	for _, s := range snapshot.Segments {
		if s.BaseOffset == base(path) {
			return s.Size
		}
	}
	return 0
}

const segmentSuffix = ".dat"

// segments are the logs' files: for each log's directory, in order.
func segments(dir string) (map[string][]string, error) {
	logs := map[string][]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err) && path == dir:
			return fs.SkipAll
		case err != nil:
			return err
		case !d.IsDir() && strings.HasSuffix(d.Name(), segmentSuffix):
			logs[filepath.Dir(path)] = append(logs[filepath.Dir(path)], path)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the directory: %w", err)
	}
	for _, paths := range logs {
		slices.SortFunc(paths, func(a, b string) int { return cmp.Compare(base(a), base(b)) })
	}
	return logs, nil
}

// base is the offset that a segment begins with: its name.
func base(path string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSuffix(filepath.Base(path), segmentSuffix), 10, 64)
	return n
}

// castagnoli is the polynomial of a batch's checksum (KIP-98).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// intact is how far data is whole batches.
func intact(data []byte) (at int, whole bool) {
	for at < len(data) {
		size, ok := batch(data[at:])
		if !ok {
			return at, false
		}
		at += size
	}
	return at, true
}

// batch is the size of the batch that data begins with, if it is sound.
func batch(data []byte) (size int, ok bool) {
	if len(data) < crcOf {
		return 0, false
	}
	size = lengthOf + int(binary.BigEndian.Uint32(data[lengthAt:]))
	if size < crcOf || size > len(data) {
		return size, false
	}
	sum := crc32.Checksum(data[crcOf:size], castagnoli)
	return size, sum == binary.BigEndian.Uint32(data[crcAt:])
}

// torn says that rest is one batch whose writing was cut: it ends before its
// length says, and no sound batch is in it, as there would be if the length
// were what is damaged.
func torn(rest []byte) bool {
	size, _ := batch(rest)
	if len(rest) >= crcOf && (size <= len(rest) || size > tornMost) {
		return false
	}
	for at := 1; at+crcOf < len(rest); at++ {
		if rest[at+magicAt] != magic {
			continue
		}
		if _, sound := batch(rest[at:]); sound {
			return false
		}
	}
	return true
}
