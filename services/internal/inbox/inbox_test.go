package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/smtp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kfake"
)

const sample = "From: =?UTF-8?q?T=C3=B6csin?= <tocsin@site.test>\r\n" +
	"To: \"Ann\" <ann@acme.test>\r\n" +
	"Subject: =?UTF-8?q?[Offline]_T=C3=BCr,_Main_street?=\r\n" +
	"Date: Sun, 01 Mar 2026 12:05:00 +0000\r\n" +
	"Message-ID: <m1@site.test>\r\n" +
	"In-Reply-To: <m0@site.test>\r\n" +
	"MIME-Version: 1.0\r\n" +
	"Content-Type: multipart/alternative; boundary=b\r\n" +
	"\r\n" +
	"--b\r\nContent-Type: text/plain; charset=UTF-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\nT=C3=BCr is offline\r\n" +
	"--b\r\nContent-Type: text/html; charset=ISO-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n<p>T=FCr</p>\r\n" +
	"--b--\r\n"

func mustOpen(t *testing.T, dir string, opts ...Option) *Inbox {
	t.Helper()
	in, err := Open(dir, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func mustAdd(t *testing.T, in *Inbox, to, raw string) Summary {
	t.Helper()
	s, err := in.Add("tocsin@site.test", []string{to}, []byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A mail is shown as a person reads it: names and bodies decoded, whatever their charset.
func TestReadableView(t *testing.T) {
	in := mustOpen(t, "")
	id := mustAdd(t, in, "ann@acme.test", sample).ID
	m, err := in.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{m.From, m.To, m.Subject, m.MessageID, m.Get("in-reply-to"), m.Text, m.HTML, m.Problem, m.Sender, strings.Join(m.Recipients, " ")}
	want := []string{"Töcsin <tocsin@site.test>", "\"Ann\" <ann@acme.test>", "[Offline] Tür, Main street", "m1@site.test", "<m0@site.test>",
		"Tür is offline", "<p>Tür</p>", "", "tocsin@site.test", "ann@acme.test"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("view (-want +got):\n%s", d)
	}
	if want := time.Date(2026, 3, 1, 12, 5, 0, 0, time.UTC); !m.Date.Equal(want) {
		t.Errorf("date %v, want %v", m.Date, want)
	}
	if string(m.Raw) != sample {
		t.Errorf("raw differs from what came:\n%s", m.Raw)
	}
}

// What is no mail at all is kept and shown as text, with the reason.
func TestUnreadable(t *testing.T) {
	for _, raw := range []string{"", "no header\r\n", "\x00\xff\r\n\r\n", "Content-Type: multipart/mixed\r\n\r\nx", "Subject: =?x?q?=ZZ?=\r\nContent-Type: text/plain; charset=nonsense\r\n\r\nbody"} {
		in := mustOpen(t, t.TempDir())
		id := mustAdd(t, in, "a@b.test", raw).ID
		m, err := in.Get(id)
		if err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if string(m.Raw) != raw {
			t.Errorf("raw %q became %q", raw, m.Raw)
		}
	}
}

// Every stored message is there after the directory is opened again, in order,
// and a half-written one is swept away.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	in := mustOpen(t, dir)
	for i := range 12 {
		mustAdd(t, in, "ann@acme.test", strings.Replace(sample, "m1@", fmt.Sprintf("n%d@", i), 1))
	}
	unfinished := filepath.Join(dir, idOf(13)+extension+temporary)
	if err := os.WriteFile(unfinished, []byte("half a mes"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := mustOpen(t, dir)
	if d := cmp.Diff(in.List(0), again.List(0)); d != "" {
		t.Errorf("after reopening (-before +after):\n%s", d)
	}
	if _, err := os.Stat(unfinished); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unfinished message is still there: %v", err)
	}
	if s := mustAdd(t, again, "ann@acme.test", sample); s.ID != idOf(13) {
		t.Errorf("the next message is %s, want %s", s.ID, idOf(13))
	}
}

// A repeat of a Message-ID to the same recipient is kept and marked; to another
// recipient it is no repeat.
func TestCopies(t *testing.T) {
	dir := t.TempDir()
	in := mustOpen(t, dir)
	var got []int
	for _, to := range []string{"ann@acme.test", "bob@acme.test", "ann@acme.test", "ann@acme.test"} {
		got = append(got, mustAdd(t, in, to, sample).Copy)
	}
	if d := cmp.Diff([]int{1, 1, 2, 3}, got); d != "" {
		t.Errorf("copies (-want +got):\n%s", d)
	}
	if d := cmp.Diff(in.List(0), mustOpen(t, dir).List(0)); d != "" {
		t.Errorf("copies after reopening (-before +after):\n%s", d)
	}
}

// A full inbox drops its oldest messages, on disk too, and says so.
func TestBounded(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	in := mustOpen(t, dir, Keep(10), Log(slog.New(slog.NewTextHandler(&log, nil))))
	_, stop := in.Subscribe() // one who never reads holds nobody up
	defer stop()
	for range 12 {
		mustAdd(t, in, "ann@acme.test", sample)
	}
	list := in.List(0)
	if len(list) != 10 || list[0].ID != idOf(12) || list[9].ID != idOf(3) {
		t.Errorf("%d messages kept, %v", len(list), list)
	}
	if _, err := in.Get(idOf(1)); !errors.Is(err, ErrNotFound) {
		t.Errorf("get of a removed message: %v", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 10 {
		t.Errorf("%d files, %v", len(files), err)
	}
	if !strings.Contains(log.String(), "the inbox is full") || !strings.Contains(log.String(), "removed=2") {
		t.Errorf("log: %s", log.String())
	}
	if got := in.List(3); len(got) != 3 || got[0].ID != idOf(12) {
		t.Errorf("List(3) = %v", got)
	}
}

// Over SMTP: a mail is taken and news of it come; too large a one is refused
// with 552; and Serve ends cleanly with a client still connected.
func TestServe(t *testing.T) {
	in := mustOpen(t, t.TempDir(), MaxBytes(4096))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var served sync.WaitGroup
	served.Go(func() {
		if err := in.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	news, stop := in.Subscribe()
	defer stop()
	c, err := smtp.Dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() // the server closed it
	send := func(body string) error {
		if err := errors.Join(c.Mail("tocsin@site.test"), c.Rcpt("ann@acme.test")); err != nil {
			return err
		}
		w, err := c.Data()
		if err != nil {
			return err
		}
		if _, err := w.Write([]byte(body)); err != nil {
			return err
		}
		return w.Close()
	}
	if err := send(sample); err != nil {
		t.Fatal(err)
	}
	<-news
	if got := in.List(0); len(got) != 1 || got[0].Recipients[0] != "ann@acme.test" {
		t.Errorf("stored: %v", got)
	}
	if err := send(sample + strings.Repeat("xxxx\r\n", 1000)); err == nil || !strings.HasPrefix(err.Error(), "552") {
		t.Errorf("a message over the limit got %v, want 552", err)
	}
	if all, err := in.Await(ctx, 1); err != nil || len(all) != 1 {
		t.Errorf("await: %d messages, %v", len(all), err)
	}
	cancel()
	served.Wait()
}

// slowStore keeps a message only when it is let.
type slowStore struct {
	memory
	begun, let chan struct{}
}

func (s *slowStore) put(n uint64, data []byte) error {
	close(s.begun)
	<-s.let
	return s.memory.put(n, data)
}

// A message that is being stored when Serve is stopped is stored and answered.
func TestStopAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		in := mustOpen(t, "")
		files := &slowStore{memory: memory{messages: make(map[uint64][]byte)}, begun: make(chan struct{}), let: make(chan struct{})}
		in.files = files
		l, err := network.Listen("tcp", "localhost:25")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := in.Serve(ctx, l); err != nil {
				t.Error(err)
			}
		})
		conn, err := network.DialContext(ctx, "tcp", "localhost:25")
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			defer conn.Close() // the server closes it too
			if err := deliver(conn, sample); err != nil {
				t.Errorf("the client was told %v", err)
			}
		})
		<-files.begun
		cancel()
		synctest.Wait() // Serve has done what it does at once
		close(files.let)
		running.Wait()
		if got := in.List(0); len(got) != 1 {
			t.Errorf("%d messages stored", len(got))
		}
	})
}

func deliver(conn net.Conn, body string) error {
	c, err := smtp.NewClient(conn, "localhost")
	if err != nil {
		return err
	}
	if err := errors.Join(c.Mail("tocsin@site.test"), c.Rcpt("ann@acme.test")); err != nil {
		return err
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, body); err != nil {
		return err
	}
	return w.Close()
}

// brokenStore is a full disk.
type brokenStore struct{ memory }

func (*brokenStore) put(uint64, []byte) error { return errors.New("no space left on device") }

// A message that cannot be stored is refused for now, so that the sender tries
// again, and the inbox goes on.
func TestDiskFull(t *testing.T) {
	in := mustOpen(t, "")
	working := in.files
	in.files = &brokenStore{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() {
		if err := in.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	defer served.Wait()
	defer cancel()
	for i, want := range []string{"451", ""} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		err = deliver(conn, sample)
		if fmt.Sprint(err)[:3] != want && (want != "" || err != nil) {
			t.Errorf("message %d: %v, want %q", i, err, want)
		}
		conn.Close() // the next has its own
		in.mu.Lock()
		in.files = working
		in.mu.Unlock()
	}
	if got := in.List(0); len(got) != 1 || got[0].ID != idOf(1) {
		t.Errorf("stored: %v", got)
	}
}

// childDir is set for the process that TestKilled kills.
const childDir = "TOCSIN_TEST_INBOX_DIR"

// Every message that was answered with 250 is there after kill -9, whole.
func TestKilled(t *testing.T) {
	if dir := os.Getenv(childDir); dir != "" {
		in := mustOpen(t, dir)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("listening", l.Addr())
		t.Fatal(in.Serve(t.Context(), l)) // until it is killed
	}
	dir := t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	child.Env = append(os.Environ(), childDir+"="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	if _, err := fmt.Fscanln(out, new(string), &addr); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	answered := make(map[string]bool)
	var senders sync.WaitGroup
	for s := range 4 {
		senders.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%d-%d@site.test", s, i)
				conn, err := net.Dial("tcp", addr)
				if err != nil {
					return
				}
				err = deliver(conn, strings.Replace(sample, "m1@site.test", id, 1))
				conn.Close() // one message each
				if err != nil {
					return
				}
				mu.Lock()
				answered[id] = true
				if len(answered) == 40 {
					if err := child.Process.Kill(); err != nil {
						t.Error(err)
					}
				}
				mu.Unlock()
			}
		})
	}
	senders.Wait()
	child.Wait() // it was killed
	in := mustOpen(t, dir)
	for _, s := range in.List(0) {
		m, err := in.Get(s.ID)
		if err != nil || m.HTML != "<p>Tür</p>" || m.Problem != "" {
			t.Errorf("message %s is not whole: %v %q", s.ID, err, m.Problem)
		}
		delete(answered, m.MessageID)
	}
	if len(answered) > 0 {
		t.Errorf("answered and lost: %v", answered)
	}
}

// No bytes in a file make the inbox panic or lose them.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	f.Add(append(appendEnvelope(nil, envelope{sender: "a", recipients: []string{"b"}}), sample...))
	f.Add([]byte("Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b--"))
	f.Fuzz(func(t *testing.T, file []byte) {
		_, raw := cutEnvelope(file)
		s := summarize(1, file)
		if s.SizeBytes != len(raw) || !bytes.HasSuffix(file, raw) {
			t.Errorf("%d bytes of %d", s.SizeBytes, len(file))
		}
	})
}
