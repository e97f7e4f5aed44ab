package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tocsin/tocsin/services/internal/admin"
	"github.com/tocsin/tocsin/services/internal/config"
)

// fakeService runs until it is told to stop, or fails when told to.
type fakeService struct {
	name  string
	trail *trail
	fail  chan error
	// stop is what the service does when told to stop.
	stop func() error
}

func (f *fakeService) Run(ctx context.Context) error {
	f.trail.add("run " + f.name)
	select {
	case <-ctx.Done():
		f.trail.add("stop " + f.name)
		if f.stop != nil {
			return f.stop()
		}
		return nil
	case err := <-f.fail:
		return err
	}
}

func (f *fakeService) Ready() error { return nil }
func (f *fakeService) Live() error  { return nil }

// trail is what happened, in order.
type trail struct {
	mu    sync.Mutex
	steps []string
}

func (t *trail) add(step string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.steps = append(t.steps, step)
}

func (t *trail) all() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.steps)
}

func (t *trail) closing(name string) (string, func(context.Context) error) {
	return name, func(context.Context) error {
		t.add("close " + name)
		return nil
	}
}

func testGroup() *Group {
	return &Group{Log: slog.New(slog.DiscardHandler), broken: make(chan error, 1)}
}

// Proves that the stack is taken down last in first out, all of it, though
// something on it fails or hangs, and that errors name what they are about.
func TestStack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tr trail
		var s Stack
		s.Push(tr.closing("broker"))
		s.Push("hung", func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		s.Push("broken", func(context.Context) error { return errors.New("no") })
		s.Push(tr.closing("port"))
		start := time.Now()
		err := s.Close(slog.New(slog.DiscardHandler))
		if got := tr.all(); !slices.Equal(got, []string{"close port", "close broker"}) {
			t.Errorf("order %v", got)
		}
		if err == nil || !strings.Contains(err.Error(), "close broken: no") || !strings.Contains(err.Error(), "close hung: ") {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took != closeTimeout {
			t.Errorf("took %v, want %v", took, closeTimeout)
		}
		if err := s.Close(slog.New(slog.DiscardHandler)); err != nil || len(tr.all()) != 2 {
			t.Errorf("closed twice: %v, %v", err, tr.all())
		}
	})
}

// Proves that a group ends cleanly when told to, that one part's failure stops
// all others and is what Run returns, and what a part's early end means.
func TestGroupEnds(t *testing.T) {
	boom := errors.New("boom")
	for _, tt := range []struct {
		name    string
		arrange func(g *Group, a, b *fakeService, cancel func())
		wantErr []string
	}{
		{name: "told to", arrange: func(_ *Group, _, _ *fakeService, cancel func()) { cancel() }},
		{name: "one fails", arrange: func(_ *Group, a, _ *fakeService, _ func()) { a.fail <- boom }, wantErr: []string{"a: boom"}},
		{name: "one fails because of another's end", arrange: func(_ *Group, a, b *fakeService, _ func()) {
			b.stop = func() error { return errors.New("later") }
			a.fail <- boom
		}, wantErr: []string{"a: boom"}},
		{name: "a failure that looks like a stop", arrange: func(_ *Group, a, _ *fakeService, _ func()) { a.fail <- context.Canceled }, wantErr: []string{"a: context canceled"}},
		{name: "fails to stop cleanly", arrange: func(_ *Group, a, _ *fakeService, cancel func()) {
			a.stop = func() error { return errors.New("uncommitted") }
			cancel()
		}, wantErr: []string{"a: uncommitted"}},
		{name: "ends by itself", arrange: func(_ *Group, a, _ *fakeService, _ func()) { a.fail <- nil }, wantErr: []string{"a: it ended by itself"}},
		{name: "port breaks", arrange: func(g *Group, _, _ *fakeService, _ func()) { g.broken <- boom }, wantErr: []string{"boom"}},
		{name: "one hangs", arrange: func(_ *Group, a, _ *fakeService, cancel func()) {
			a.stop = func() error {
				time.Sleep(2 * StopTimeout)
				return nil
			}
			cancel()
		}, wantErr: []string{"still running", "stop: a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tr trail
				g := testGroup()
				a := &fakeService{name: "a", trail: &tr, fail: make(chan error, 1)}
				b := &fakeService{name: "b", trail: &tr, fail: make(chan error, 1)}
				g.parts = []part{{name: "a", run: a.Run, forever: true}, {name: "b", run: b.Run, forever: true}}
				// What may end at any time ends without stopping anybody.
				g.Go("demo", func(context.Context) error { return nil })
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- g.run(ctx, StopTimeout) }()
				synctest.Wait()
				if len(done) > 0 {
					t.Fatalf("ended before anything happened: %v", <-done)
				}
				tt.arrange(g, a, b, cancel)
				err := <-done
				if (err == nil) != (tt.wantErr == nil) {
					t.Fatalf("error %v, want %q", err, tt.wantErr)
				}
				for _, want := range tt.wantErr {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %v lacks %q", err, want)
					}
				}
				if !slices.Contains(tr.all(), "stop b") {
					t.Errorf("b was not stopped: %v", tr.all())
				}
				if g.Ready() == nil {
					t.Error("ready after its end")
				}
				time.Sleep(2 * StopTimeout) // the one that hangs ends too
			})
		})
	}
}

// settingsOn are settings whose log goes nowhere in particular.
func settingsOn() Settings {
	var s Settings
	s.Log.Level = slog.LevelError
	s.Log.Format = "text"
	return s
}

// Proves that a service's port answers before the service is made, that
// everything is torn down after the services have stopped, and in which order.
func TestServe(t *testing.T) {
	var tr trail
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	port := freePort(t)
	get := func(path string) int {
		resp, err := http.Get("http://" + port + path)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	err := Run(ctx, settingsOn(), func(g *Group) error {
		g.Defer(tr.closing("broker"))
		cfg := admin.Config{Listen: config.NewAddress(port)}
		err := g.Serve("monitor", cfg, func(env Env) (Service, error) {
			if env.Log == nil || env.Tracer == nil || env.Meter == nil {
				t.Error("an incomplete environment")
			}
			if code := get("/readyz"); code != http.StatusServiceUnavailable {
				t.Errorf("/readyz before the service is there: %d", code)
			}
			if code := get("/livez"); code != http.StatusOK {
				t.Errorf("/livez before the service is there: %d", code)
			}
			return &fakeService{name: "monitor", trail: &tr, stop: func() error {
				if code := get("/readyz"); code != http.StatusServiceUnavailable {
					t.Errorf("/readyz while stopping: %d", code)
				}
				return nil
			}}, nil
		})
		g.Go("tester", func(context.Context) error {
			if code := get("/readyz"); code != http.StatusOK {
				t.Errorf("/readyz: %d", code)
			}
			if err := g.Ready(); err != nil {
				t.Error(err)
			}
			cancel()
			return nil
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if get("/livez") != 0 {
		t.Error("the port answers after the end")
	}
	if want := []string{"run monitor", "stop monitor", "close broker"}; !slices.Equal(tr.all(), want) {
		t.Errorf("order %v, want %v", tr.all(), want)
	}
}

// Proves that what was acquired is torn down when the next thing fails, and
// that the error says which service it was.
func TestBuildFails(t *testing.T) {
	var tr trail
	port := freePort(t)
	err := Run(t.Context(), settingsOn(), func(g *Group) error {
		g.Defer(tr.closing("broker"))
		cfg := admin.Config{Listen: config.NewAddress(port)}
		return g.Serve("gateway", cfg, func(Env) (Service, error) { return nil, errors.New("no relay") })
	})
	if err == nil || !strings.Contains(err.Error(), "start gateway: no relay") {
		t.Errorf("error %v", err)
	}
	if !slices.Equal(tr.all(), []string{"close broker"}) {
		t.Errorf("torn down %v", tr.all())
	}
	ln, err := net.Listen("tcp", port)
	if err != nil {
		t.Fatalf("the admin port is still taken: %v", err)
	}
	ln.Close()
}

func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// program is a command line for the tests of Main. Its one command does what
// the argument says.
type program struct {
	Settings
	Do string `name:"do" default:"end" help:"What to do."`
}

func (p *program) Run(ctx context.Context) error {
	switch p.Do {
	case "fail":
		return errors.New("it failed")
	case "misuse":
		return config.Usage(errors.New("give a file"))
	case "wait":
		os.Stdout.WriteString("waiting\n")
		<-ctx.Done()
	case "hang":
		os.Stdout.WriteString("waiting\n")
		select {}
	}
	return nil
}

// childVariable makes this test binary a program of ours.
const childVariable = "LIFECYCLE_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		Main("program", "For tests.", &program{})
	}
	os.Exit(m.Run())
}

// Proves the exit codes 0, 1 and 2, and that the message names the program.
func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{args: nil, code: 0},
		{args: []string{"--do=fail"}, code: 1, says: "program: it failed\n"},
		{args: []string{"--do=misuse"}, code: 2, says: "program: give a file\n"},
		{args: []string{"--do=fail", "--config.check"}, code: 0},
		{args: []string{"--do=fail", "--config.print"}, code: 0},
		{args: []string{"--do=fail", "--help"}, code: 0},
		{args: []string{"--nothing"}, code: 2, says: "--nothing"},
		{args: []string{"--log.level=loud"}, code: 2, says: "--log.level"},
		{args: []string{"--log.format=xml"}, code: 2, says: "--log.format"},
		{args: []string{"--kafka.brokers=here"}, code: 2, says: "kafka.brokers"},
		{args: []string{"--log.level=debug", "--log.format=json"}, code: 0},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			var stderr bytes.Buffer
			code := run("program", "For tests.", &program{}, tt.args, &stderr)
			if code != tt.code || !strings.Contains(stderr.String(), tt.says) {
				t.Errorf("code %d, says %q; want %d with %q", code, stderr.String(), tt.code, tt.says)
			}
		})
	}
}

// Proves that SIGINT and SIGTERM end a program cleanly, and that a second one
// ends it at once though it hangs.
func TestSignals(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, do string
		signals  []os.Signal
		code     int
	}{
		{name: "SIGINT", do: "wait", signals: []os.Signal{os.Interrupt}},
		{name: "SIGTERM", do: "wait", signals: []os.Signal{syscall.SIGTERM}},
		{name: "twice", do: "hang", signals: []os.Signal{syscall.SIGTERM, os.Interrupt}, code: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), exe, "--do="+tt.do)
			cmd.Env = append(os.Environ(), childVariable+"=1")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 1)); err != nil {
				t.Fatalf("the child said nothing: %v", err)
			}
			for _, s := range tt.signals {
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Wait() // the exit code says it all
			if code := cmd.ProcessState.ExitCode(); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
		})
	}
}
