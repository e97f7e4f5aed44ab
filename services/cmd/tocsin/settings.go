package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/tocsin/tocsin/services/internal/config"
	"github.com/tocsin/tocsin/services/internal/settings"
)

// settingsTimeout bounds one request; the console itself waits up to 10 s for
// Kafka, and large files take a while to read.
const settingsTimeout = time.Minute

// settingsCmd is `tocsin settings`.
type settingsCmd struct {
	Apply  settingsApplyCmd  `cmd:"" help:"Write a file of settings: all of it, or nothing if anything is wrong with it."`
	Get    settingsGetCmd    `cmd:"" help:"Print the settings, with versions: to be changed and applied again."`
	Export settingsExportCmd `cmd:"" help:"Print the settings without versions: to be kept, or applied elsewhere."`
}

// consoleTarget is the console to talk to.
type consoleTarget struct {
	To string `name:"to" default:"http://127.0.0.1:7100" placeholder:"URL" help:"The console."`
}

// Validate names the first setting that is wrong.
func (c consoleTarget) Validate() error {
	u, err := url.Parse(c.To)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("to: %q is not a URL such as http://127.0.0.1:7100", c.To)
	}
	return nil
}

type settingsApplyCmd struct {
	consoleTarget
	File  string `name:"file" short:"f" required:"" placeholder:"FILE" help:"YAML or JSON; - reads the standard input."`
	Prune bool   `name:"prune" help:"Make the file all there is of the accounts it names: objects it does not name are deleted, fields it leaves out go back to their defaults."`
}

// Run writes the file and says what changed.
func (c *settingsApplyCmd) Run(ctx context.Context) error {
	text, err := readFile(c.File)
	if err != nil {
		return config.Usage(fmt.Errorf("apply settings: %w", err))
	}
	query := url.Values{}
	if c.Prune {
		query.Set("prune", "true")
	}
	body, err := c.request(ctx, http.MethodPut, query, "application/json", text)
	if err != nil {
		return fmt.Errorf("apply %s: %w", c.File, err)
	}
	var answer struct {
		Changes  []settings.Line
		Warnings []settings.Problem
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("apply %s: the console's answer is not readable: %w", c.File, err)
	}
	return report(os.Stdout, os.Stderr, answer.Changes, answer.Warnings)
}

// report prints what changed, and apart from it what looks like a slip.
func report(out, warn io.Writer, changes []settings.Line, warnings []settings.Problem) error {
	for _, w := range warnings {
		if _, err := fmt.Fprintln(warn, "warning:", w); err != nil {
			return err
		}
	}
	if len(changes) == 0 {
		_, err := fmt.Fprintln(out, "nothing changed")
		return err
	}
	for _, l := range changes {
		if _, err := fmt.Fprintln(out, l); err != nil {
			return err
		}
	}
	return nil
}

// readFile reads a file or, for "-", the standard input; the console refuses
// what is too large.
func readFile(name string) ([]byte, error) {
	if name != "-" {
		return os.ReadFile(name)
	}
	text, err := io.ReadAll(io.LimitReader(os.Stdin, settings.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the standard input: %w", err)
	}
	return text, nil
}

type settingsGetCmd struct {
	consoleTarget
	Output   string   `name:"output" short:"o" default:"yaml" enum:"yaml,json" help:"yaml or json."`
	Accounts []string `arg:"" optional:"" name:"account" help:"Account ids; all accounts if none is given."`
}

// Run prints the settings.
func (c *settingsGetCmd) Run(ctx context.Context) error {
	return c.print(ctx, c.Output, c.Accounts, url.Values{})
}

type settingsExportCmd struct {
	consoleTarget
	Output   string   `name:"output" short:"o" default:"yaml" enum:"yaml,json" help:"yaml or json."`
	Accounts []string `arg:"" optional:"" name:"account" help:"Account ids; all accounts if none is given."`
}

// Run prints the settings.
func (c *settingsExportCmd) Run(ctx context.Context) error {
	return c.print(ctx, c.Output, c.Accounts, url.Values{"versions": {"false"}})
}

func (c consoleTarget) print(ctx context.Context, output string, accounts []string, query url.Values) error {
	query["account"] = accounts
	body, err := c.request(ctx, http.MethodGet, query, "application/"+output, nil)
	if err != nil {
		return fmt.Errorf("get settings: %w", err)
	}
	_, err = os.Stdout.Write(body)
	return err
}

// request talks to the console. What is wrong with the file or the question is
// an error of use; everything else is a failure.
func (c consoleTarget) request(ctx context.Context, method string, query url.Values, accept string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, settingsTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.To, "/")+"/v1/settings?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return nil, config.Usage(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("reach the console at %s (is it running? --to names another): %w", c.To, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read the console's answer: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return answer, nil
	}
	var f struct{ Error string }
	if json.Unmarshal(answer, &f) != nil || f.Error == "" {
		f.Error = fmt.Sprintf("the console at %s answers %s: %.300s", c.To, resp.Status, bytes.TrimSpace(answer))
	}
	err = errors.New(f.Error)
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge:
		return nil, config.Usage(err)
	}
	return nil, err
}
