// Package harness runs Tocsin's real binaries for the tests of this module,
// with everything around them: a broker (kfake in the test's process, or
// Apache Kafka in a container), a mail server that keeps what it is sent, a
// camera, a Motion daemon. A test says only how it differs.
//
// It talks to the binaries as anybody else would: flags, signals, HTTP, SMTP
// and Kafka. It knows nothing of their insides.
//
// Invariant: what a test starts has ended when the test has.
package harness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// ContainersVariable gates the tests that need a Docker engine: `make
// integration` sets it to 1 after it has started one and built the images.
const ContainersVariable = "TOCSIN_CONTAINERS"

// NeedContainers skips the test where nobody said that there is an engine.
func NeedContainers(t testing.TB) {
	t.Helper()
	if os.Getenv(ContainersVariable) != "1" {
		t.Skipf("needs a Docker engine and our images: run `make integration`, which sets %s=1", ContainersVariable)
	}
}

// Main runs a package's tests and removes what they shared: the binaries and
// the broker.
func Main(m *testing.M) int {
	defer removeShared()
	defer binaries.remove()
	return m.Run()
}

// Eventually asks try until it is content, and fails the test with its last
// complaint when it is not within the limit. It returns how long that took.
func Eventually(t testing.TB, within time.Duration, what string, try func() error) time.Duration {
	t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	ask := time.NewTicker(20 * time.Millisecond)
	defer ask.Stop()
	for {
		err := try()
		if err == nil {
			return time.Since(start)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, within, err)
		case <-ask.C:
		}
	}
}

// Pass lets time go by, for a test about what does not happen.
func Pass(d time.Duration) { <-time.After(d) }

// ports are handed out once a run, from below the range out of which the
// system takes the ports of outgoing connections.
var ports struct {
	sync.Mutex
	taken map[int]bool
}

// FreePort is a port of 127.0.0.1 that nobody listens on now and that no other
// test of this run is given.
func FreePort(t testing.TB) int {
	t.Helper()
	return freePort(t, 30000, 32700)
}

func freePort(t testing.TB, from, to int) int {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	if ports.taken == nil {
		ports.taken = make(map[int]bool)
	}
	for range 1000 {
		port := from + rand.IntN(to-from)
		if ports.taken[port] {
			continue
		}
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		ln.Close()
		ports.taken[port] = true
		return port
	}
	t.Fatalf("no free port from %d to %d", from, to)
	return 0
}

// listen opens an address of this test's own. A program that is being started
// by another test may still hold a copy of the socket with which FreePort tried
// the port, for the moment between fork and exec.
func listen(t testing.TB, address string) net.Listener {
	t.Helper()
	var ln net.Listener
	Eventually(t, 5*time.Second, "listen on "+address, func() (err error) {
		ln, err = net.Listen("tcp", address)
		return err
	})
	return ln
}

// FreeAddress is host:port for FreePort.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", FreePort(t))
}
