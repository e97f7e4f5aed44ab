package mailer

import (
	"cmp"
	"fmt"
	"net"
	"net/mail"
	"strconv"
	"strings"
	"time"
)

// Ways of encryption.
const (
	// TLSRequired: STARTTLS, and neither login nor mail without it.
	TLSRequired = "required"
	// TLSImplicit: TLS from the first byte.
	TLSImplicit = "implicit"
	// TLSOpportunistic: STARTTLS where it is offered. Somebody between us and
	// the relay can take the offer away.
	TLSOpportunistic = "opportunistic"
	// TLSNone: never, for a relay on the same machine.
	TLSNone = "none"
)

// Config says by which relay mail is sent.
type Config struct {
	Host     string `name:"host" help:"Mail relay: a host name or IP address."`
	Port     int    `name:"port" placeholder:"PORT" help:"Port of the relay; 587 by default, 465 with implicit TLS."`
	TLS      string `name:"tls" enum:"required,implicit,opportunistic,none" default:"required" help:"Encryption to the relay: required (STARTTLS or nothing is sent), implicit (TLS from the first byte), opportunistic or none."`
	CA       string `name:"tls-ca" placeholder:"FILE" help:"PEM file with the certificates to trust for the relay, instead of the system's."`
	Username string `name:"username" help:"User name at the relay; empty: no login."`
	Password string `name:"password" secret:"" help:"Password at the relay."`
	From     string `name:"from" default:"Tocsin <tocsin@localhost>" help:"Sender of all mails, such as 'Tocsin <tocsin@example.org>'."`
	Hello    string `name:"hello" placeholder:"NAME" help:"Name that we greet the relay with; the host's name by default."`

	Connections int `name:"connections" default:"4" help:"Connections to the relay at once. With one, an account whose mail is slow delays the others."`

	// Limits of each step (RFC 5321 4.5.3.2 gives the least for a server that
	// forwards; we are a submitting client with many mails waiting).
	ConnectTimeout time.Duration `name:"connect-timeout" default:"30s" help:"How long connecting, TLS and login may take together."`
	CommandTimeout time.Duration `name:"command-timeout" default:"60s" help:"How long the relay may take to answer a command."`
	DataTimeout    time.Duration `name:"data-timeout" default:"3m" help:"How long the relay may take to take in a mail's content."`
	ReplyTimeout   time.Duration `name:"reply-timeout" default:"5m" help:"How long the relay may take to answer after a mail's content (RFC 5321 has 10 min). Without an answer by then the mail is uncertain, and the retry may be a second copy."`
	IdleTimeout    time.Duration `name:"idle-timeout" default:"30s" help:"How long a connection without work is kept."`
	StopTimeout    time.Duration `name:"stop-timeout" default:"20s" help:"How long mails under way may take when the process stops."`
}

// Validate names the first setting that is wrong. An empty Host is no error
// here, for `tocsin up` puts its own; New refuses it.
func (c Config) Validate() error {
	if strings.ContainsAny(c.Host, "/@ ") || strings.Contains(c.Host, ":") && net.ParseIP(c.Host) == nil {
		return fmt.Errorf("smtp.host: %q is not a host name or IP address alone; the port goes into smtp.port", c.Host)
	}
	if c.Port < 0 || c.Port > 65535 {
		return fmt.Errorf("smtp.port: %d is not a port (1 to 65535, or 0 for the usual one)", c.Port)
	}
	switch c.TLS {
	case TLSRequired, TLSImplicit, TLSOpportunistic, TLSNone:
	default:
		return fmt.Errorf("smtp.tls: %q is not one of required, implicit, opportunistic, none", c.TLS)
	}
	if c.Username == "" && c.Password != "" {
		return fmt.Errorf("smtp.password: there is a password but no smtp.username")
	}
	if c.Username != "" && c.Password == "" {
		return fmt.Errorf("smtp.username: there is a user name but no smtp.password (or smtp.password-file)")
	}
	if _, err := c.sender(); err != nil {
		return err
	}
	if strings.ContainsAny(c.Hello, " \r\n\t") {
		return fmt.Errorf("smtp.hello: %q is not a host name", c.Hello)
	}
	const most = 100
	if c.Connections < 1 || c.Connections > most {
		return fmt.Errorf("smtp.connections: %d is not between 1 and %d", c.Connections, most)
	}
	for name, d := range map[string]time.Duration{
		"connect-timeout": c.ConnectTimeout, "command-timeout": c.CommandTimeout, "data-timeout": c.DataTimeout,
		"reply-timeout": c.ReplyTimeout, "idle-timeout": c.IdleTimeout, "stop-timeout": c.StopTimeout,
	} {
		if d <= 0 {
			return fmt.Errorf("smtp.%s: %v is not above 0", name, d)
		}
	}
	return nil
}

func (c Config) sender() (*mail.Address, error) {
	from, err := mail.ParseAddress(c.From)
	if err != nil {
		return nil, fmt.Errorf("smtp.from: %q is not a mail address such as 'Tocsin <tocsin@example.org>': %w", c.From, err)
	}
	if !ascii(from.Address) {
		return nil, fmt.Errorf("smtp.from: %q has letters that many relays refuse; write its domain in its ASCII form (xn--…)", c.From)
	}
	return from, nil
}

// port is the one in force.
func (c Config) port() int {
	usual := 587
	if c.TLS == TLSImplicit {
		usual = 465
	}
	return cmp.Or(c.Port, usual)
}

// relay is "host:port".
func (c Config) relay() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.port())) }
