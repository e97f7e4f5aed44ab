package smtptest

import (
	"io"
	"net"
	"sync"
)

// buffer gives a connection what TCP has and net.Pipe has not: a write returns
// before the other end reads it, and what was written before Close can still be
// read after it.
func buffer(c net.Conn) net.Conn {
	b := &buffered{Conn: c}
	b.more = sync.NewCond(&b.mu)
	go b.pump()
	return b
}

type buffered struct {
	net.Conn

	mu      sync.Mutex
	more    *sync.Cond
	pending []byte
	closed  bool
	broken  error
}

func (b *buffered) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, net.ErrClosed
	}
	if b.broken != nil {
		return 0, b.broken
	}
	b.pending = append(b.pending, p...)
	b.more.Signal()
	return len(p), nil
}

// Close lets what is pending be read; what the other end writes meanwhile is lost.
func (b *buffered) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	b.more.Signal()
	if len(b.pending) > 0 {
		go io.Copy(io.Discard, b.Conn) // ends when the pump closes it
	}
	return nil
}

// pump ends when the connection is closed and all was read, or the other end
// has gone.
func (b *buffered) pump() {
	defer b.Conn.Close() // nothing can be done about it
	for {
		b.mu.Lock()
		for len(b.pending) == 0 && !b.closed {
			b.more.Wait()
		}
		out := b.pending
		b.mu.Unlock()
		if len(out) == 0 {
			return
		}
		n, err := b.Conn.Write(out)
		b.mu.Lock()
		b.pending = b.pending[n:]
		b.broken = err
		b.mu.Unlock()
		if err != nil {
			return
		}
	}
}
