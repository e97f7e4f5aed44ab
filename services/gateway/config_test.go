package gateway

import (
	"strings"
	"testing"
)

// Proves that each setting that is wrong is refused by name, before anything runs.
func TestConfig(t *testing.T) {
	if err := config("127.0.0.1:25").Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"smtp.tls":                  func(c *Config) { c.SMTP.TLS = "maybe" },
		"public-url":                func(c *Config) { c.PublicURL = "tocsin.example.org" },
		"gateway.members":           func(c *Config) { c.Members = 0 },
		"gateway.group":             func(c *Config) { c.Group = "" },
		"gateway.in-flight":         func(c *Config) { c.InFlight = 0 },
		"gateway.in-flight-account": func(c *Config) { c.InFlightAccount = c.InFlight + 1 },
	} {
		c := config("127.0.0.1:25")
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), name+":") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
