package main

import (
	"crypto/tls"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/tools/internal/agents"
)

type natsFlags struct{ urls, creds, ca string }

func (f *natsFlags) addFlags(flags *pflag.FlagSet, defaultURLs, urlHelp string) {
	flags.StringVar(&f.urls, "nats", defaultURLs, urlHelp)
	flags.StringVar(&f.creds, "nats-creds", "", "credentials `FILE` of a NATS user")
	flags.StringVar(&f.ca, "nats-ca", "", "PEM `FILE` with trusted CA certificates of NATS servers (default: the system's)")
}

// parseURLsAndTrustedCA returns the URLs of --nats, and a TLS configuration that trusts the certificates of --nats-ca.
// Without --nats, urls is nil. Without --nats-ca, tlsConfig is nil.
func (f *natsFlags) parseURLsAndTrustedCA() (urls []string, tlsConfig *tls.Config, err error) {
	if f.urls == "" {
		if f.creds+f.ca != "" {
			return nil, nil, usagef("--nats-creds or --nats-ca is given without --nats; expected --nats, too")
		}
		return nil, nil, nil
	}
	text := f.urls
	if path, ok := strings.CutPrefix(text, "@"); ok {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, usagef("--nats: %w", err)
		}
		text = string(data)
	}
	for text := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == '\n' }) {
		text = strings.TrimSpace(text)
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return nil, nil, usagef("--nats is %q; expected URLs such as nats://host:4222 or tls://host:4222, with special characters of user and password percent-encoded", agents.RedactCredentialsInURLs(text))
		}
		urls = append(urls, text)
	}
	if len(urls) == 0 {
		return nil, nil, usagef("--nats is %q; expected URLs such as nats://host:4222 or tls://host:4222", agents.RedactCredentialsInURLs(f.urls))
	}
	if f.creds != "" {
		if _, err := os.Stat(f.creds); err != nil {
			return nil, nil, usagef("--nats-creds: %w", err)
		}
	}
	if f.ca != "" {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		tlsConfig.RootCAs, err = readCertPool(f.ca)
	}
	return urls, tlsConfig, err
}

func (f *natsFlags) natsServerForAgents(secret *secretFlag) (n agents.NATS, err error) {
	token, err := secret.readSecretFileOrVariable()
	if err != nil {
		return n, err
	}
	urls, trust, err := f.parseURLsAndTrustedCA()
	return agents.NATS{URL: strings.Join(urls, ","), Creds: f.creds, Token: token, TLS: trust}, err
}

// maxSecretBytes is the maximum length of a secret.
const maxSecretBytes = 1024 // NATS sends it in a message of at most about 4,000 bytes

// secretFlag is a flag that names a file with a secret. If the flag is not given, the secret is read from an
// environment variable.
type secretFlag struct{ name, variable, file string }

// addFlag adds the flag. The description of the flag in the help output begins with "FILE with the secret". The
// parameter help continues this description.
func (f *secretFlag) addFlag(flags *pflag.FlagSet, name, variable, help string) {
	f.name, f.variable = name, variable
	flags.StringVar(&f.file, name, "", "`FILE` with the secret "+help+" (default: the environment variable "+variable+", or none)")
}

func (f *secretFlag) readSecretFileOrVariable() (string, error) {
	if f.file == "" {
		secret := os.Getenv(f.variable)
		if len(secret) > maxSecretBytes {
			return "", usagef("%s has %d bytes; expected at most %d", f.variable, len(secret), maxSecretBytes)
		}
		return secret, nil
	}
	text, err := os.ReadFile(f.file)
	secret := strings.TrimSpace(string(text))
	switch {
	case err != nil:
		return "", usagef("--%s: %w", f.name, err)
	case secret == "" || len(secret) > maxSecretBytes:
		return "", usagef("--%s is %s, which has %d bytes; expected 1 to %d", f.name, f.file, len(secret), maxSecretBytes)
	}
	return secret, nil
}
