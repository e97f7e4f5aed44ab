package broker

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Layout of a record batch, format 2 (KIP-98): base offset 8 bytes, length 4,
// leader epoch 4, magic 1, CRC-32C 4, then what the CRC covers.
const (
	lengthAt = 8
	lengthOf = 12 // what the length counts begins here
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
	for _, name := range []string{"meta.json", "topics.json"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if err == nil && !json.Valid(data) {
			return fmt.Errorf("%s is damaged: it is no JSON", name)
		}
	}
	logs := map[string][]string{} // directory: its segments in order
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err) && path == dir:
			return fs.SkipAll
		case err != nil:
			return err
		case !d.IsDir() && strings.HasSuffix(d.Name(), ".dat"):
			logs[filepath.Dir(path)] = append(logs[filepath.Dir(path)], path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the directory: %w", err)
	}
	for _, segments := range logs {
		slices.Sort(segments)
		for i, path := range segments {
			data, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("read a log: %w", err)
			}
			at, whole := intact(data)
			if whole || i == len(segments)-1 && torn(data[at:]) {
				continue
			}
			rel, _ := filepath.Rel(dir, path)
			return fmt.Errorf("%s is damaged at byte %d", rel, at)
		}
	}
	return nil
}

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
	sum := crc32.Checksum(data[crcOf:size], crc32.MakeTable(crc32.Castagnoli))
	return size, sum == binary.BigEndian.Uint32(data[crcAt:])
}

// torn says that rest is one batch whose writing was cut: it ends before its
// length says.
func torn(rest []byte) bool {
	size, _ := batch(rest)
	return len(rest) < crcOf || size > len(rest) && size <= tornMost
}
