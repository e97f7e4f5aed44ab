package gateway

import (
	"fmt"
	"net/mail"
	"net/url"
	"strings"

	"github.com/tocsin/tocsin/services/gateway/internal/mailer"
)

// Config are the gateway's settings.
type Config struct {
	SMTP      mailer.Config `embed:"" prefix:"smtp."`
	PublicURL string        `name:"public-url" default:"http://127.0.0.1:7100" help:"Where recipients reach the console: the start of every link in a mail."`

	Members  int    `name:"gateway.members" default:"1" help:"Members of the consumer group in this process: more share its partitions among more processors."`
	Group    string `name:"gateway.group" default:"tocsin-gateway" help:"Consumer group."`
	Instance string `name:"gateway.instance" help:"Name of this process among the gateways: the same after a restart, and no other's. The host's name if empty."`

	// Attempts that have begun wait in the mailer's queue, which they bound.
	InFlight        int `name:"gateway.in-flight" default:"32" help:"Mails of one partition that may be under way at once."`
	InFlightAccount int `name:"gateway.in-flight-account" default:"8" help:"Mails of one account that may be under way at once: mails that hang use up their account's share only."`
}

// mostInFlight bounds both settings.
const mostInFlight = 1000

// Validate names the first setting that is wrong.
func (c Config) Validate() error {
	if err := c.SMTP.Validate(); err != nil {
		return err
	}
	link, err := url.Parse(c.PublicURL)
	switch {
	case err != nil || link.Host == "" || link.Scheme != "http" && link.Scheme != "https":
		return fmt.Errorf("public-url: %q is no address such as https://tocsin.example.org", c.PublicURL)
	case c.Members < 1 || c.Members > 64:
		return fmt.Errorf("gateway.members: %d is not between 1 and 64", c.Members)
	case c.Group == "":
		return fmt.Errorf("gateway.group: a name is needed")
	case c.InFlight < 1 || c.InFlight > mostInFlight:
		return fmt.Errorf("gateway.in-flight: %d is not between 1 and %d", c.InFlight, mostInFlight)
	case c.InFlightAccount < 1 || c.InFlightAccount > c.InFlight:
		return fmt.Errorf("gateway.in-flight-account: %d is not between 1 and gateway.in-flight, %d", c.InFlightAccount, c.InFlight)
	}
	return nil
}

// messageDomain is the right side of Message-IDs: the sender's domain, so that
// no other system makes the same.
func (c Config) messageDomain() (string, error) {
	from, err := mail.ParseAddress(c.SMTP.From)
	if err != nil {
		return "", fmt.Errorf("smtp.from: %q is not a mail address: %w", c.SMTP.From, err)
	}
	_, domain, _ := strings.Cut(from.Address, "@")
	return domain, nil
}
