package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/myriad-go/myriad/hub"
)

// A topic has a NATS subject. The topic's name is divided into tokens after each dot, colon and slash, so that a
// pattern such as news.* corresponds to a wildcard. The dot at the end of a token is omitted, because subjects separate
// tokens with dots anyway. Bytes that a subject must not contain, or that would be ambiguous, become % and two hex
// digits. An empty token becomes %. The subject of a name that is too long ends with a hash of the whole name; a header
// of the message then contains the name.
//
//	news.sport   myriad.t.news.sport
//	chat:7       myriad.t.chat:.7
//	a b..        myriad.t.a%20b.%.%

const (
	topicPrefix   = "myriad.t."
	shardedPrefix = "myriad.s."
	allSuffix     = ">"

	maxTokens = 16
	// maxSubjectBytes limits an escaped name in a subject.
	maxSubjectBytes = 1024
	hashMark        = "%%"
	hashSize        = len(hashMark) + 2*sha256.Size
)

func subjectPrefix(kind hub.Kind) string {
	if kind == hub.Sharded {
		return shardedPrefix
	}
	return topicPrefix
}

const hexDigits = "0123456789ABCDEF"

func isUnescaped(b byte) bool {
	return b > ' ' && b < 0x7f && b != '.' && b != '*' && b != '>' && b != '%'
}

// escapeName encodes a topic name or a prefix as NATS subject tokens. lastTokenOffset is where the last token begins.
func escapeName(name string) (text string, lastTokenOffset int) {
	out := make([]byte, 0, len(name)+16)
	n := 1
	for i := range len(name) {
		b := name[i]
		switch {
		case n < maxTokens && (b == '.' || b == ':' || b == '/'):
			if b != '.' {
				out = append(out, b)
			} else if len(out) == lastTokenOffset {
				out = append(out, '%')
			}
			out = append(out, '.')
			lastTokenOffset = len(out)
			n++
		case isUnescaped(b):
			out = append(out, b)
		default:
			out = append(out, '%', hexDigits[b>>4], hexDigits[b&15])
		}
	}
	if len(out) == lastTokenOffset {
		out = append(out, '%')
	}
	return string(out), lastTokenOffset
}

// topicSubject returns the NATS subject of a topic. If the topic's name is too long, the subject contains a hash of the
// name.
func topicSubject(kind hub.Kind, name string) (subject string, hashed bool) {
	text, _ := escapeName(name)
	if len(text) <= maxSubjectBytes {
		return subjectPrefix(kind) + text, false
	}
	text = text[:strings.LastIndexByte(text[:maxSubjectBytes-hashSize], '.')+1]
	sum := sha256.Sum256([]byte(name))
	return subjectPrefix(kind) + text + hashMark + hex.EncodeToString(sum[:]), true
}

// parseTopicSubject returns the kind and name of the topic to which a NATS subject belongs. ok is false if the subject
// does not belong to a topic, or contains only a hash of the topic's name.
func parseTopicSubject(subject string) (kind hub.Kind, name string, ok bool) {
	text, isTopic := strings.CutPrefix(subject, topicPrefix)
	if !isTopic {
		var sharded bool
		if text, sharded = strings.CutPrefix(subject, shardedPrefix); !sharded {
			return 0, "", false
		}
		kind = hub.Sharded
	}
	name, ok = unescapeName(text)
	return kind, name, ok
}

func unescapeName(text string) (name string, ok bool) {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		switch b := text[i]; {
		case b == '.':
			if i == 0 || text[i-1] != ':' && text[i-1] != '/' {
				out = append(out, '.')
			}
		case b != '%':
			out = append(out, b)
		case i+1 == len(text) || text[i+1] == '.': // empty token
			if i > 0 && text[i-1] != '.' {
				return "", false
			}
		default:
			if i+2 >= len(text) {
				return "", false
			}
			c, err := hex.DecodeString(text[i+1 : i+3])
			if err != nil {
				return "", false
			}
			out = append(out, c[0])
			i += 2
		}
	}
	return string(out), true
}

// subjectCoveringPattern returns a NATS subject that covers all topics of a pattern. For example, it returns
// myriad.t.news.> for news.a*.
func subjectCoveringPattern(pattern string) string {
	var literal []byte
	whole := true
loop:
	for i := 0; i < len(pattern); i++ {
		b := pattern[i]
		switch b {
		case '*', '?', '[':
			whole = false
			break loop
		case '\\':
			if i+1 < len(pattern) {
				i++
				b = pattern[i]
			}
		}
		literal = append(literal, b)
	}
	if whole {
		subject, _ := topicSubject(hub.Topic, string(literal))
		return subject
	}
	text, last := escapeName(string(literal))
	text = text[:last]
	if len(text) > maxSubjectBytes-hashSize {
		text = text[:strings.LastIndexByte(text[:maxSubjectBytes-hashSize], '.')+1]
	}
	return topicPrefix + text + allSuffix
}
