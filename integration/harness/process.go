package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is a program that a test starts, kills and starts again. Its output
// is kept and printed when the test fails. One goroutine at a time uses it.
type Process struct {
	Name string
	// Args may be changed between two starts.
	Args []string
	// Env is added to an environment without our own and OpenTelemetry's variables.
	Env []string
	// Dir is where it runs; empty is the test's temporary directory.
	Dir string
	// Admin is host:port of /livez and /readyz, empty where there is none.
	Admin string

	t    testing.TB
	path string
	log  output
	cmd  *exec.Cmd
	done chan struct{}
}

// NewProcess prepares a program; Start starts it. It is killed with the test.
func NewProcess(t testing.TB, name, path string, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, Name: name, path: path, Args: args, Dir: t.TempDir()}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("---- output of %s %s\n%s", p.Name, strings.Join(p.Args, " "), p.log.tail(100))
		}
	})
	return p
}

// Start starts it. It must not be running.
func (p *Process) Start() {
	p.t.Helper()
	if p.Running() {
		p.t.Fatalf("start %s: it is running", p.Name)
	}
	cmd := exec.Command(p.path, p.Args...)
	cmd.Dir = p.Dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TOCSIN_") && !strings.HasPrefix(v, "OTEL_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, p.Env...)
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	// It ends with the tests even when they are killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("start %s: %v", p.Name, err)
	}
	p.cmd, p.done = cmd, make(chan struct{})
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // its exit code is read from ProcessState
		fmt.Fprintf(&p.log, "---- %s ended: %v\n", p.Name, cmd.ProcessState)
	}()
}

// Running says whether it was started and has not ended.
func (p *Process) Running() bool {
	if p.done == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal, such as SIGSTOP and SIGCONT, to the running process.
func (p *Process) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("send %v to %s: %v", sig, p.Name, err)
	}
}

// Kill is kill -9; it returns when the process is gone, and does nothing when
// it was already.
func (p *Process) Kill() {
	if p.Running() {
		_ = p.cmd.Process.Kill() // it may just have ended
		<-p.done
	}
}

// Stop asks it to stop, as a service manager does, and returns its exit code.
func (p *Process) Stop(within time.Duration) int {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	return p.Wait(within)
}

// Wait returns the exit code of a process that ends by itself.
func (p *Process) Wait(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("%s still runs after %v", p.Name, within)
		return 0
	}
}

// Ready waits until /readyz says so, and returns how long that took.
func (p *Process) Ready(within time.Duration) time.Duration {
	p.t.Helper()
	return Eventually(p.t, within, p.Name+" ready", func() error {
		if !p.Running() {
			p.t.Fatalf("%s ended before it was ready", p.Name)
		}
		return get("http://" + p.Admin + "/readyz")
	})
}

// Output is everything that it has printed so far, over all its starts.
func (p *Process) Output() string { return p.log.tail(0) }

// RSS is the memory that the running process holds, in bytes.
func (p *Process) RSS() int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatalf("read the memory of %s: %v", p.Name, err)
	}
	for line := range strings.Lines(string(status)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	p.t.Fatalf("read the memory of %s: no VmRSS", p.Name)
	return 0
}

// Run runs a program to its end and returns its exit code and output.
func Run(t testing.TB, within time.Duration, name, path string, args ...string) (code int, output string) {
	t.Helper()
	p := NewProcess(t, name, path, args...)
	p.Start()
	return p.Wait(within), p.Output()
}

// get is nil for an answer 200.
func get(url string) error {
	client := http.Client{Timeout: time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if resp.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("%s: %s: %s", url, resp.Status, bytes.TrimSpace(body)), err)
	}
	return err
}

// output keeps what a process prints; several may write to it at once.
type output struct {
	mu   sync.Mutex
	text []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	return len(p), nil
}

// tail is the last n lines; 0 is all of them.
func (o *output) tail(n int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := string(o.text)
	if n == 0 {
		return text
	}
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n-1):], "")
}
