package broker

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/config"
	"github.com/tocsin/tocsin/services/internal/topic"
)

var topics = []topic.Topic{{Name: "log"}}

// fill runs a broker on dir, writes n records, and stops it.
func fill(t *testing.T, dir string, n int) {
	t.Helper()
	c, err := Open(dir, config.NewAddress("127.0.0.1:0"), topics, 1, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for i := range n {
		rec := &kgo.Record{Topic: "log", Value: fmt.Appendf(nil, "record %d", i)}
		if err := cl.ProduceSync(context.Background(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func segment(t *testing.T, dir string) string {
	t.Helper()
	var found string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".dat") && strings.Contains(path, "log") {
			found = path
		}
		return err
	})
	if err != nil || found == "" {
		t.Fatalf("no segment in %s: %v", dir, err)
	}
	return found
}

// A sound directory opens again with its records; a batch cut short at the very
// end, as a power cut leaves it, costs that batch only.
func TestSoundAndTornLogsOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kafka")
	fill(t, dir, 3)
	fill(t, dir, 1)
	path := segment(t, dir)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data[:len(data)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	fill(t, dir, 0)
	if rest, _ := os.ReadFile(path); len(rest) >= len(data)-5 {
		t.Errorf("the torn batch is still there")
	}
}

// What a crash left open is ended as a broker ends it: the records of an open
// transaction are never seen, a reader of committed records gets to the end, and
// one whose commit was already in one partition is committed in the other.
func TestOpenTransactionsAreEnded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kafka")
	crashed := filepath.Join(t.TempDir(), "kafka")
	c, err := Open(dir, config.NewAddress("127.0.0.1:0"), topics, 2, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.TransactionalID("writer"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	transact := func(value string) {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for p := range int32(2) {
			if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "log", Partition: p, Value: []byte(value)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	transact("committed")
	if err := cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	half := copyTo(t, dir, filepath.Join(t.TempDir(), "kafka"), func(path string) bool { return strings.Contains(path, "log-1") })
	transact("open")
	copyTo(t, dir, crashed, nil)
	cl.Close()
	c.Close()

	if got := readAll(t, crashed); got != "committed committed" {
		t.Errorf("after a crash in a transaction a reader sees %q", got)
	}
	if got := readAll(t, half); got != "committed committed" {
		t.Errorf("after a crash between the markers of a commit a reader sees %q", got)
	}
}

// copyTo copies a directory that a broker uses, as a crash would leave it. Of
// logs that cut names, the last batch is left out.
func copyTo(t *testing.T, from, to string, cut func(path string) bool) string {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if cut != nil && cut(path) && strings.HasSuffix(path, segmentSuffix) {
			first, _ := batch(data)
			data = data[:first]
		}
		target := strings.Replace(path, from, to, 1)
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// readAll starts a broker on dir, has the same producer write and commit once
// more, and reads both partitions to their ends, read committed. What that last
// transaction wrote must be seen and is left out of the answer.
func readAll(t *testing.T, dir string) string {
	t.Helper()
	c, err := Open(dir, config.NewAddress("127.0.0.1:0"), topics, 2, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	writer, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.TransactionalID("writer"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := writer.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for p := range int32(2) {
		if err := writer.ProduceSync(ctx, &kgo.Record{Topic: "log", Partition: p, Value: []byte("last")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.EndTransaction(ctx, kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ConsumeTopics("log"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var seen []string
	for last := 0; last < 2; {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("read what is committed, after %q: %v", seen, err)
		}
		for rec := range fetches.RecordsAll() {
			if string(rec.Value) == "last" {
				last++
			} else {
				seen = append(seen, string(rec.Value))
			}
		}
	}
	return strings.Join(seen, " ")
}

// A length that was changed is not taken for a cut last write, and a directory
// without its list of topics not for a new one.
func TestDamageThatLooksLikeACrash(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"length": func(t *testing.T, dir string) {
			path := segment(t, dir)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			data[lengthAt+1] ^= 1
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"topics.json": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "topics.json")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "kafka")
			fill(t, dir, 3)
			damage(t, dir)
			if _, err := Open(dir, config.NewAddress("127.0.0.1:0"), topics, 1, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "move it away") {
				t.Fatalf("open: %v, want a refusal and the way out", err)
			}
		})
	}
}

// A byte that changed in the middle is refused by name, and nothing is cut off.
func TestDamageIsRefused(t *testing.T) {
	for _, tc := range []struct{ name, want string }{
		{"segment", "is damaged at byte 0"},
		{"meta.json", "meta.json is damaged"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "kafka")
			fill(t, dir, 3)
			path := filepath.Join(dir, tc.name)
			if tc.name == "segment" {
				path = segment(t, dir)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			data[crcOf+10] ^= 0xff
			if tc.name == "meta.json" {
				data = data[:crcOf]
			}
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = Open(dir, config.NewAddress("127.0.0.1:0"), topics, 1, slog.New(slog.DiscardHandler))
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "move it away") {
				t.Fatalf("open: %v, want %q and the way out", err, tc.want)
			}
			if after, _ := os.ReadFile(path); len(after) != len(data) {
				t.Errorf("the file was changed: %d bytes, were %d", len(after), len(data))
			}
		})
	}
}

// A directory that cannot be written is refused at the start, with the way out.
func TestLockNeedsAWritableDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil {
		t.Error("a file is taken for a data directory")
	}
	if os.Getuid() == 0 {
		t.Skip("root writes where nobody may")
	}
	dir = t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "--data") {
		t.Errorf("lock: %v", err)
	}
}

// One data directory serves one process at a time.
func TestLockIsExclusive(t *testing.T) {
	dir := t.TempDir()
	release, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("second lock: %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	again, err := Lock(dir)
	if err != nil {
		t.Fatalf("after release: %v", err)
	}
	_ = again()
}
