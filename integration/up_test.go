package integration

import (
	"bytes"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tocsin/tocsin/integration/harness"
)

// `tocsin up` is ready soon, and keeps its holds, its settings and its inbox
// over a clean restart and over kill -9.
func TestUp(t *testing.T) {
	t.Parallel()
	const offline, online = 8 * time.Second, 2 * time.Second
	up := harness.NewUp(t, "--hold.offline", offline.String(), "--hold.online", online.String())
	up.Start()
	t.Logf("ready after %v, with %d MiB", up.Ready(patience).Round(time.Millisecond), up.RSS()>>20)
	harness.ApplySettings(t, up.API, acme)
	// Started anew it has read all settings before its first event.
	if code := up.Stop(20 * time.Second); code != 0 {
		t.Fatalf("stopped with exit code %d, want 0", code)
	}
	up.Start()
	up.Ready(patience)

	now := time.Now()
	harness.Post(t, up.Ingest, harness.StatusAt("acme", "yard", "ONLINE", now), harness.StatusAt("acme", "shop", "ONLINE", now))
	moved := time.Now()
	harness.Post(t, up.Ingest, harness.MotionAt("acme", "yard", "START", "m1", "", moved))
	up.AwaitInbox(5*time.Second, "[Motion] Yard at Main street")
	t.Logf("motion: shown in the inbox %v after it occurred", time.Since(moved).Round(time.Millisecond))

	// A clean restart in the hold.
	down := time.Now()
	harness.Post(t, up.Ingest, harness.StatusAt("acme", "yard", "OFFLINE", down))
	harness.Pass(time.Second)
	if code := up.Stop(20 * time.Second); code != 0 {
		t.Fatalf("stopped with exit code %d, want 0", code)
	}
	up.Start()
	t.Logf("ready again after %v", up.Ready(patience).Round(time.Millisecond))
	up.AwaitInbox(time.Second, "[Motion] Yard at Main street")
	harness.Pass(time.Until(down.Add(offline - 500*time.Millisecond)))
	up.AwaitInbox(time.Millisecond, "[Motion] Yard at Main street")
	up.AwaitInbox(slack, "[Motion] Yard at Main street", "[Offline] Yard at Main street")

	// kill -9 in the next one.
	down = time.Now()
	harness.Post(t, up.Ingest, harness.StatusAt("acme", "shop", "OFFLINE", down))
	harness.Pass(time.Second)
	up.Kill()
	up.Start()
	t.Logf("ready again after kill -9 and %v", up.Ready(patience).Round(time.Millisecond))
	harness.Pass(time.Until(down.Add(offline - 500*time.Millisecond)))
	up.AwaitInbox(time.Millisecond, "[Motion] Yard at Main street", "[Offline] Yard at Main street")
	up.AwaitInbox(patience, "[Motion] Yard at Main street", "[Offline] Yard at Main street", "[Offline] Shop at Main street")
	t.Logf("the hold that was killed: shown %v after it was due", time.Since(down.Add(offline)).Round(time.Millisecond))

	// Those who were told of the outage before both are told of its end.
	harness.Post(t, up.Ingest, harness.StatusAt("acme", "yard", "ONLINE", time.Now()))
	up.AwaitInbox(online+slack, "[Motion] Yard at Main street", "[Offline] Yard at Main street", "[Offline] Shop at Main street", "[Online] Yard at Main street")
}

// What `tocsin up` cannot do it says at once, with the way out, and ends: 1 for
// what failed, 2 for wrong settings.
func TestUpRefuses(t *testing.T) {
	t.Parallel()

	t.Run("port in use", func(t *testing.T) {
		t.Parallel()
		for _, flag := range []string{"ingest.listen", "console.listen", "broker.listen", "sink.listen", "admin.monitor.listen"} {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			up := harness.NewUp(t, "--"+flag, ln.Addr().String())
			refused(t, up.Process, 1, ln.Addr().String(), "in use")
		}
	})

	t.Run("data directory in use", func(t *testing.T) {
		t.Parallel()
		first := harness.NewUp(t)
		first.Start()
		first.Ready(patience)
		second := harness.NewUp(t, "--data", first.Data)
		refused(t, second.Process, 1, first.Data, "in use", "--data")
		// The first goes on.
		first.Ready(time.Second)
	})

	t.Run("data directory damaged", func(t *testing.T) {
		t.Parallel()
		up := harness.NewUp(t)
		up.Start()
		up.Ready(patience)
		harness.ApplySettings(t, up.API, acme)
		if code := up.Stop(20 * time.Second); code != 0 {
			t.Fatalf("stopped with exit code %d, want 0", code)
		}
		file, before := damage(t, filepath.Join(up.Data, "kafka"))
		refused(t, up.Process, 1, up.Data, "damaged")
		after, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s was changed by the refusal (%v)", file, err)
		}
	})

	t.Run("wrong settings", func(t *testing.T) {
		t.Parallel()
		config := filepath.Join(t.TempDir(), "tocsin.yaml")
		if err := os.WriteFile(config, []byte("hold:\n  ofline: 20s\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		up := harness.NewUp(t, "--config", config)
		refused(t, up.Process, 2, config, "line 2", "hold.ofline")
		up = harness.NewUp(t, "--hold.offline", "20")
		refused(t, up.Process, 2, "hold.offline", "20")
		up = harness.NewUp(t)
		up.Env = []string{"TOCSIN_HOLD_OFLINE=20s"}
		refused(t, up.Process, 2, "TOCSIN_HOLD_OFLINE")
	})
}

// A file of accounts with a typo is refused whole, by line and field, and what
// was there stays.
func TestSettingsTypo(t *testing.T) {
	t.Parallel()
	up := harness.NewUp(t)
	up.Start()
	up.Ready(patience)
	harness.ApplySettings(t, up.API, acme)
	get := func() string {
		code, out := harness.Run(t, 20*time.Second, "tocsin settings get", harness.Binary(t, "tocsin"), "settings", "get", "--to", up.API)
		if code != 0 {
			t.Fatalf("tocsin settings get: exit code %d\n%s", code, out)
		}
		return out
	}
	before := get()
	if !strings.Contains(before, "ann@acme.test") {
		t.Errorf("the settings that were applied are not there:\n%s", before)
	}
	typo := strings.Replace(acme, "name: Acme", "name: Renamed", 1)
	typo = strings.Replace(typo, "enabled: true, admin: false", "enabeld: true, admin: false", 1)
	code, out := harness.TrySettings(t, up.API, typo)
	if code != 2 || !strings.Contains(out, "line 10") || !strings.Contains(out, "enabeld") {
		t.Errorf("exit code %d, want 2 and a message with line 10 and enabeld:\n%s", code, out)
	}
	if after := get(); after != before {
		t.Errorf("the refused file changed the settings:\n%s", after)
	}
}

// refused starts a process that must end by itself with that exit code and say
// all of these words.
func refused(t *testing.T, p *harness.Process, code int, says ...string) {
	t.Helper()
	already := len(p.Output())
	p.Start()
	got := p.Wait(30 * time.Second)
	out := p.Output()[already:]
	if got != code {
		t.Errorf("exit code %d, want %d:\n%s", got, code, out)
	}
	for _, words := range says {
		if !strings.Contains(out, words) {
			t.Errorf("it does not say %q:\n%s", words, out)
		}
	}
}

// damage flips the last byte of the largest log below dir, inside a batch of
// records, and returns that file and what is in it now.
func damage(t *testing.T, dir string) (file string, content []byte) {
	t.Helper()
	var size int64
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".dat" {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Size() > size {
			file, size = path, info.Size()
		}
		return err
	})
	if err != nil || size == 0 {
		t.Fatalf("no log to damage below %s (%v)", dir, err)
	}
	if content, err = os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	content[size-1] ^= 0xff
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file, content
}
