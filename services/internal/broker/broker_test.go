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
