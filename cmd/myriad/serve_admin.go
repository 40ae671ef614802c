package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/admin"
)

// adminFlags are the operator's door.
type adminFlags struct {
	addr      string
	control   bool
	tokenFile string
}

func (f *adminFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.addr, "admin", "", "serve a page that follows this server, metrics, health, profiles and traces over HTTP on this address, on loopback if it has no host (default: not at all)")
	flags.BoolVar(&f.control, "admin-control", false, "let who knows the token pause accepting, close connections and drain from there; the token is printed unless it is in --admin-token-file (default: nobody can)")
	flags.StringVar(&f.tokenFile, "admin-token-file", "", fmt.Sprintf("file with the token for --admin-control, %d bytes or more (default: a random one)", admin.MinToken))
}

// check says what does not go together.
func (f *adminFlags) check() error {
	switch {
	case f.control && f.addr == "":
		return usagef("--admin-control is for the page of --admin; expected it with --admin")
	case f.tokenFile != "" && !f.control:
		return usagef("--admin-token-file is for --admin-control; expected it with that")
	}
	return nil
}

// maxTokenFile bounds what is read of a file.
const maxTokenFile = 4096

// token is what lets somebody control the server, "" for nobody.
func (f *adminFlags) token(out io.Writer) (string, error) {
	if err := f.check(); err != nil || !f.control {
		return "", err
	}
	if f.tokenFile == "" {
		token := rand.Text()
		fmt.Fprintf(out, "myriad: the token for --admin-control is %s\n", token)
		return token, nil
	}
	file, err := os.Open(f.tokenFile)
	if err != nil {
		return "", usagef("--admin-token-file: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFile))
	if err != nil {
		return "", usagef("--admin-token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < admin.MinToken {
		return "", usagef("--admin-token-file %s has %d bytes; expected a token of %d or more", f.tokenFile, len(token), admin.MinToken)
	}
	return token, nil
}
