package mailer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	gomail "github.com/wneessen/go-mail"
	"github.com/wneessen/go-mail/smtp"
)

// connection is one to the relay, logged in. go-mail's smtp.Client holds its
// lock while it waits for a reply, so an abort closes the net.Conn below it.
type connection struct {
	cfg    *Config
	client *smtp.Client
	net    net.Conn
	// unwatch ends the watch that closes net when the mailer is killed.
	unwatch func() bool
	// used: a mail was begun on it. open: one was begun and not finished.
	used, open bool
	writer     io.WriteCloser
}

// dial connects, encrypts and logs in, in Config.ConnectTimeout. The connection
// ends with ctx.
func (m *Mailer) dial(ctx context.Context) (*connection, error) {
	c := &connection{cfg: &m.cfg}
	limit, cancel := context.WithTimeout(ctx, m.cfg.ConnectTimeout)
	defer cancel()
	stop := func() bool { return true }
	opts := []gomail.Option{
		gomail.WithPort(m.cfg.port()),
		gomail.WithTimeout(m.cfg.ConnectTimeout),
		gomail.WithTLSConfig(m.tlsConfig()),
		gomail.WithDialContextFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
			n, err := m.Dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			// go-mail leaves a connection open whose greeting, TLS or login
			// fails, and its timeout is for each read, this one for all of them.
			c.net = n
			stop = context.AfterFunc(limit, func() { n.Close() }) // whoever reads from it sees the error
			if m.cfg.TLS == TLSImplicit {
				t := tls.Client(n, m.tlsConfig())
				if err := t.HandshakeContext(ctx); err != nil {
					return nil, err
				}
				return t, nil
			}
			return n, nil
		}),
	}
	switch m.cfg.TLS {
	case TLSImplicit:
		opts = append(opts, gomail.WithSSL()) // the dialer above does it; this says not to do STARTTLS
	case TLSOpportunistic:
		opts = append(opts, gomail.WithTLSPolicy(gomail.TLSOpportunistic))
	case TLSNone:
		opts = append(opts, gomail.WithTLSPolicy(gomail.NoTLS))
	default:
		opts = append(opts, gomail.WithTLSPolicy(gomail.TLSMandatory))
	}
	if m.cfg.Hello != "" {
		opts = append(opts, gomail.WithHELO(m.cfg.Hello))
	}
	if m.cfg.Username != "" {
		opts = append(opts, gomail.WithSMTPAuthCustom(&login{user: m.cfg.Username, password: m.cfg.Password, host: m.cfg.Host}))
	}
	relay, err := gomail.NewClient(m.cfg.Host, opts...)
	if err != nil {
		return nil, fmt.Errorf("set up the relay %s: %w", m.cfg.relay(), err)
	}
	c.client, err = relay.DialToSMTPClientWithContext(limit)
	if !stop() && err == nil {
		err = limit.Err()
	}
	if err != nil {
		if c.net != nil {
			c.net.Close() // as above
		}
		return nil, fmt.Errorf("connect to the relay %s: %w", m.cfg.relay(), err)
	}
	c.unwatch = context.AfterFunc(ctx, func() { c.net.Close() }) // as above
	return c, nil
}

// utf8 says whether the relay takes addresses outside ASCII.
func (c *connection) utf8() bool {
	ok, _ := c.client.Extension("SMTPUTF8")
	return ok
}

// limit gives the next step its time.
func (c *connection) limit(d time.Duration) error { return c.client.UpdateDeadline(d) }

// envelope says MAIL and RCPT.
func (c *connection) envelope(from string, msg message) error {
	c.client.SkipSMTPUTF8(!msg.utf8)
	if err := c.limit(c.cfg.CommandTimeout); err != nil {
		return err
	}
	if err := c.client.Mail("<" + from + ">"); err != nil {
		return fmt.Errorf("MAIL: %w", err)
	}
	if err := c.limit(c.cfg.CommandTimeout); err != nil {
		return err
	}
	if err := c.client.Rcpt(msg.to); err != nil {
		return fmt.Errorf("RCPT: %w", err)
	}
	return nil
}

// data says DATA.
func (c *connection) data() (err error) {
	if err := c.limit(c.cfg.CommandTimeout); err != nil {
		return err
	}
	if c.writer, err = c.client.Data(); err != nil {
		return fmt.Errorf("DATA: %w", err)
	}
	return nil
}

// content sends all but the final dot. It fails when that lasts longer than the
// lease, so that the dot is never sent after it. After an error the connection
// must be closed and the writer must not, for that would send the dot.
func (c *connection) content(data []byte, lease time.Time) error {
	if err := c.limit(min(c.cfg.DataTimeout, time.Until(lease))); err != nil {
		return err
	}
	if _, err := c.writer.Write(data); err != nil {
		return err
	}
	return c.client.Text.W.Flush()
}

// finish sends the final dot and reads the answer. An error that is no reply
// means that nobody knows.
func (c *connection) finish() (string, error) {
	if err := c.limit(c.cfg.ReplyTimeout); err != nil {
		return "", err
	}
	if err := c.writer.Close(); err != nil {
		return "", err
	}
	if r, ok := c.writer.(interface{ ServerResponse() string }); ok {
		return r.ServerResponse(), nil
	}
	return "", nil
}

// reset takes back a mail that was begun.
func (c *connection) reset() error {
	c.open = false
	return errors.Join(c.limit(c.cfg.CommandTimeout), c.client.Reset())
}

// quitTimeout is how long a relay may take to say goodbye.
const quitTimeout = 2 * time.Second

func (c *connection) quit() {
	if c.limit(quitTimeout) == nil {
		c.client.Quit() //nolint:errcheck // it is over either way
	}
	c.close()
}

func (c *connection) close() {
	c.unwatch()
	c.net.Close() // it is over either way
}

// login picks how to log in from what the relay offers: over TLS the plain ways,
// which every relay has; in the clear only those that do not show the password.
type login struct {
	user, password, host string
	smtp.Auth
}

func (l *login) Start(server *smtp.ServerInfo) (string, []byte, error) {
	offered := make(map[string]bool)
	for _, a := range server.Auth {
		offered[a] = true
	}
	safe := server.TLS || loopback(l.host)
	switch {
	case safe && offered["PLAIN"]:
		l.Auth = smtp.PlainAuth("", l.user, l.password, l.host, safe)
	case safe && offered["LOGIN"]:
		l.Auth = smtp.LoginAuth(l.user, l.password, l.host, safe)
	case offered["SCRAM-SHA-256"]:
		l.Auth = smtp.ScramSHA256Auth(l.user, l.password)
	case offered["CRAM-MD5"]:
		l.Auth = smtp.CRAMMD5Auth(l.user, l.password)
	case len(server.Auth) == 0:
		return "", nil, errors.New("the relay offers no login; leave smtp.username empty if it needs none")
	default:
		return "", nil, fmt.Errorf("the relay offers no login that is safe here: %v (encrypted: %v)", server.Auth, server.TLS)
	}
	return l.Auth.Start(server)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
