package config

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/alecthomas/kong"
)

// Address is a setting that says where to listen, host:port. It remembers the
// flag it is set by, so that "in use" can say what to change. The zero value
// listens nowhere.
type Address struct {
	hostPort string
	flag     string
}

// NewAddress is the address host:port, for tests and for defaults in code.
func NewAddress(hostPort string) Address { return Address{hostPort: hostPort} }

// String is host:port as it was set.
func (a Address) String() string { return a.hostPort }

// Flag is the name of the setting, without dashes; "" if it has none.
func (a Address) Flag() string { return a.flag }

// Decode implements kong's mapper.
func (a *Address) Decode(ctx *kong.DecodeContext) error {
	var text string
	if err := ctx.Scan.PopValueInto("host:port", &text); err != nil {
		return err
	}
	if text != "" {
		if _, _, err := net.SplitHostPort(text); err != nil {
			return fmt.Errorf("%q is not host:port: %w", text, err)
		}
	}
	*a = Address{hostPort: text, flag: ctx.Value.Name}
	return nil
}

// Loopback says whether only this machine can reach the address. A name that
// is not "localhost" counts as reachable from elsewhere.
func (a Address) Loopback() bool {
	host, _, err := net.SplitHostPort(a.hostPort)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Listen opens the address with listen, which is net.Listen or a stand-in.
func (a Address) Listen(listen func(network, address string) (net.Listener, error)) (net.Listener, error) {
	ln, err := listen("tcp", a.hostPort)
	if err == nil {
		return ln, nil
	}
	way := ""
	if a.flag != "" {
		way = "; choose another address with --" + a.flag
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("address %s is in use by another program%s", a.hostPort, way)
	}
	return nil, fmt.Errorf("listen on %s: %w%s", a.hostPort, err, way)
}
