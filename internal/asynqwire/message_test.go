package asynqwire

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// asynqTaskMessage is asynq's own generated type: its package is internal, but
// it registers itself with protobuf. It is the oracle of these tests.
func asynqTaskMessage(tb testing.TB) protoreflect.Message {
	tb.Helper()
	typ, err := protoregistry.GlobalTypes.FindMessageByName("asynq.TaskMessage")
	if err != nil {
		tb.Fatalf("asynq registers no asynq.TaskMessage any more: %v", err)
	}
	return typ.New()
}

// encodeMessage encodes m as asynq does, with a payload and headers.
func encodeMessage(tb testing.TB, m Message) []byte {
	tb.Helper()
	pb := asynqTaskMessage(tb)
	set := func(name protoreflect.Name, v protoreflect.Value) {
		pb.Set(pb.Descriptor().Fields().ByName(name), v)
	}
	set("type", protoreflect.ValueOfString(m.Type))
	set("id", protoreflect.ValueOfString(m.ID))
	set("queue", protoreflect.ValueOfString(m.Queue))
	set("error_msg", protoreflect.ValueOfString(m.ErrorMsg))
	set("unique_key", protoreflect.ValueOfString(m.UniqueKey))
	set("retry", protoreflect.ValueOfInt32(int32(m.Retry)))
	set("retried", protoreflect.ValueOfInt32(int32(m.Retried)))
	set("timeout", protoreflect.ValueOfInt64(m.Timeout))
	set("deadline", protoreflect.ValueOfInt64(m.Deadline))
	set("retention", protoreflect.ValueOfInt64(m.Retention))
	set("payload", protoreflect.ValueOfBytes([]byte("\xff payload")))
	set("group_key", protoreflect.ValueOfString("group"))
	set("last_failed_at", protoreflect.ValueOfInt64(7))
	set("completed_at", protoreflect.ValueOfInt64(8))
	headers := pb.Mutable(pb.Descriptor().Fields().ByName("headers")).Map()
	headers.Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString("value"))
	b, err := proto.Marshal(pb.Interface())
	if err != nil {
		tb.Fatalf("Marshal: %v", err)
	}
	return b
}

// oracleMessage decodes b with asynq's own type.
func oracleMessage(tb testing.TB, b []byte) (Message, error) {
	tb.Helper()
	pb := asynqTaskMessage(tb)
	if err := proto.Unmarshal(b, pb.Interface()); err != nil {
		return Message{}, err
	}
	get := func(name protoreflect.Name) protoreflect.Value {
		return pb.Get(pb.Descriptor().Fields().ByName(name))
	}
	return Message{
		Type: get("type").String(), ID: get("id").String(), Queue: get("queue").String(),
		ErrorMsg: get("error_msg").String(), UniqueKey: get("unique_key").String(),
		Retry: int(get("retry").Int()), Retried: int(get("retried").Int()),
		Timeout: get("timeout").Int(), Deadline: get("deadline").Int(), Retention: get("retention").Int(),
	}, nil
}

var fullMessage = Message{
	Type: "sms:send", ID: "0b3c4f0e", Queue: "größe", ErrorMsg: "worker: throttled", UniqueKey: "asynq:{größe}:unique:sms:send:0f",
	Retry: 25, Retried: 3, Timeout: 1800, Deadline: 1 << 40, Retention: 86400,
}

func TestMessageDecode(t *testing.T) {
	t.Parallel()
	for _, want := range []Message{
		{},
		fullMessage,
		{Retry: -1, Retried: -1 << 31, Timeout: -1, Deadline: -1 << 63, Retention: 1<<63 - 1},
	} {
		got, err := DecodeMessage(encodeMessage(t, want))
		if err != nil {
			t.Errorf("DecodeMessage(%+v): %v", want, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("DecodeMessage differs (-want +got):\n%s", diff)
		}
	}
}

func TestMessageSkips(t *testing.T) {
	t.Parallel()
	b := encodeMessage(t, fullMessage)
	b = protowire.AppendTag(b, 999, protowire.BytesType)
	b = protowire.AppendString(b, "a later version's field")
	b = protowire.AppendTag(b, 998, protowire.StartGroupType)
	b = protowire.AppendTag(b, fieldID, protowire.BytesType) // within the group: not ours
	b = protowire.AppendString(b, "other")
	b = protowire.AppendTag(b, 998, protowire.EndGroupType)
	b = protowire.AppendTag(b, fieldID, protowire.VarintType) // another wire type
	b = protowire.AppendVarint(b, 1)
	b = protowire.AppendTag(b, fieldRetry, protowire.Fixed32Type)
	b = protowire.AppendFixed32(b, 1)
	b = protowire.AppendTag(b, fieldRetried, protowire.VarintType) // the last wins
	b = protowire.AppendVarint(b, 4)
	want := fullMessage
	want.Retried = 4
	got, err := DecodeMessage(b)
	if err != nil || got != want {
		t.Errorf("DecodeMessage = %+v, %v, want %+v", got, err, want)
	}
}

func TestMessageMalformed(t *testing.T) {
	t.Parallel()
	const secret = "+49 170 555"
	text := slices.Clip(protowire.AppendString(protowire.AppendTag(nil, fieldErrorMsg, protowire.BytesType), secret))
	head := len(text)
	for _, tc := range []struct {
		name   string
		in     []byte
		field  protowire.Number
		offset int
	}{
		{"half a tag", append(text, 0x80), 0, head},
		{"field number 0", append(text, 0x02, 0x00), 0, head},
		{"reserved wire type", append(text, byte(fieldID<<3|7)), fieldID, head},
		{"half a string", text[:len(text)-1], fieldErrorMsg, 0},
		{"length beyond the end", append(text, byte(fieldID<<3|2), 0xff, 0xff, 0xff, 0xff, 0x0f), fieldID, head},
		{"half a number", append(text, byte(fieldRetry<<3), 0x80), fieldRetry, head},
		{"number of 11 bytes", append(text, append([]byte{byte(fieldRetry << 3)}, strings.Repeat("\xff", 11)...)...), fieldRetry, head},
		{"group without an end", append(text, byte(2<<3|3)), 2, head},
		{"end of no group", append(text, byte(2<<3|4)), 2, head},
		{"invalid UTF-8", append(text, byte(fieldID<<3|2), 1, 0xff), fieldID, head},
	} {
		got, err := DecodeMessage(tc.in)
		me, ok := errors.AsType[*messageError](err)
		if !ok || !errors.Is(err, ErrMessage) || me.field != tc.field || me.offset != tc.offset {
			t.Errorf("%s: error %v, want field %d at byte %d", tc.name, err, tc.field, tc.offset)
			continue
		}
		if got != (Message{}) {
			t.Errorf("%s: DecodeMessage = %+v beside an error, want nothing", tc.name, got)
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error holds data: %v", tc.name, err)
		}
		if _, err := oracleMessage(t, tc.in); err == nil {
			t.Errorf("%s: asynq's decoder accepts it", tc.name)
		}
	}
}

func FuzzDecodeMessage(f *testing.F) {
	full := encodeMessage(f, fullMessage)
	f.Add(full)
	f.Add(full[:len(full)-1])
	f.Add([]byte(nil))
	f.Add([]byte{0x1a, 0x01, 0xff})
	f.Add([]byte{0x13, 0x1b, 0x1c, 0x14})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := DecodeMessage(b)
		if err != nil && !errors.Is(err, ErrMessage) {
			t.Fatalf("decodeMessage: error %v of another type", err)
		}
		// asynq decodes the skipped fields too, so it may refuse more, never less
		want, oracleErr := oracleMessage(t, b)
		if oracleErr != nil {
			return
		}
		if err != nil || got != want {
			t.Errorf("DecodeMessage = %+v, %v; asynq reads %+v", got, err, want)
		}
	})
}

func BenchmarkDecodeMessage(b *testing.B) {
	full := encodeMessage(b, fullMessage)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeMessage(full); err != nil {
			b.Fatal(err)
		}
	}
}
