package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/emersion/go-smtp"
)

// How the server treats its clients. All are bounds against clients that hang.
const (
	// idle is RFC 5321's 5 min (4.5.3.2.7).
	idle = 5 * time.Minute
	// maxRecipients is the least that RFC 5321 lets a server take (4.5.3.1.8).
	maxRecipients = 100
	// stopWait is how long a message that is being stored may take to be answered.
	stopWait = 5 * time.Second
)

// Serve answers SMTP on l until ctx ends, closes l, lets messages whose DATA
// is complete be stored and answered, closes the connections and returns nil.
// Any other end is an error. It may be called for several listeners.
func (in *Inbox) Serve(ctx context.Context, l net.Listener) error {
	b := &backend{inbox: in, quiet: make(chan struct{}, 1)}
	s := smtp.NewServer(b)
	s.Domain = "localhost"
	s.ReadTimeout, s.WriteTimeout = idle, idle
	s.MaxMessageBytes = in.maxBytes
	s.MaxRecipients = maxRecipients
	s.EnableSMTPUTF8 = true
	s.ErrorLog = debugLog{in.log}

	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	select {
	case err := <-served:
		// The connections that are open go down with the listener.
		return errors.Join(fmt.Errorf("serve the inbox: %w", err), s.Close())
	case <-ctx.Done():
	}
	l.Close() // it accepts no more either way
	<-served  //nolint:errcheck // the error of the closed listener
	b.stop()
	if err := s.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		in.log.Debug("close the inbox's connections", "err", err)
	}
	return nil
}

// backend counts the messages that were taken and not yet answered.
type backend struct {
	inbox *Inbox
	quiet chan struct{} // has a value when busy became 0 while stopping

	mu       sync.Mutex
	busy     int
	stopping bool
}

func (b *backend) NewSession(*smtp.Conn) (smtp.Session, error) { return &session{backend: b}, nil }

// begin is false when no message is to be taken any more.
func (b *backend) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopping {
		return false
	}
	b.busy++
	return true
}

func (b *backend) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy--; b.busy == 0 && b.stopping {
		b.quiet <- struct{}{}
	}
}

func (b *backend) stop() {
	b.mu.Lock()
	b.stopping = true
	busy := b.busy
	b.mu.Unlock()
	if busy == 0 {
		return
	}
	select {
	case <-b.quiet:
	case <-time.After(stopWait):
	}
}

// session is one connection's transaction.
type session struct {
	backend    *backend
	sender     string
	recipients []string
	// storing is true from the end of DATA until it is answered: go-smtp calls
	// Reset after it has written the reply.
	storing bool
}

func (s *session) Mail(from string, _ *smtp.MailOptions) error { s.sender = from; return nil }

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.recipients = append(s.recipients, to)
	return nil
}

func (s *session) Data(r io.Reader) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if !s.backend.begin() {
		return &smtp.SMTPError{Code: 421, EnhancedCode: smtp.EnhancedCode{4, 3, 2}, Message: "shutting down"}
	}
	s.storing = true
	sum, err := s.backend.inbox.Add(s.sender, s.recipients, data)
	if err != nil {
		s.backend.inbox.log.Error("a message could not be stored in the inbox", "err", err)
		return &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 3, 0}, Message: "could not store the message"}
	}
	s.backend.inbox.log.Debug("message stored in the inbox", "message", sum.ID, "size_bytes", sum.SizeBytes)
	return nil
}

func (s *session) Reset() {
	s.sender, s.recipients = "", nil
	if s.storing {
		s.storing = false
		s.backend.end()
	}
}

// Logout comes from whoever closes the connection, maybe in the middle of Data:
// it touches nothing.
func (s *session) Logout() error { return nil }

// debugLog is where go-smtp says that a client went away or sent nonsense.
type debugLog struct{ log *slog.Logger }

func (d debugLog) Printf(format string, v ...any) {
	d.log.Debug("inbox connection", "err", fmt.Sprintf(format, v...))
}
func (d debugLog) Println(v ...any) { d.log.Debug("inbox connection", "err", fmt.Sprint(v...)) }
