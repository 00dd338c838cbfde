package luascripts

import "testing"

// A task's name in a line is read back, and is short for what asynq draws itself.
func TestJobReadsBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		queue, id string
		most      int // bytes
	}{
		{"default", "m1", 4}, {"default", "0190c3a4-5b6c-7d8e-9f00-a1b2c3d4e5f6", 18}, {"mail", "0190c3a4-5b6c-7d8e-9f00-a1b2c3d4e5f6", 22}, {"mail", "a:b", 9}, {"a:b/c d", "x", 18},
		{"default", "0190C3A4-5b6c-7d8e-9f00-a1b2c3d4e5f6", 38}, {"default", "\x02:0123456789abcdef", 20},
	} {
		job := JobID(tt.queue, tt.id)
		queue, id, ok := TaskOf(job)
		if !ok || queue != tt.queue || id != tt.id || len(job) > tt.most {
			t.Errorf("JobID(%q, %q) = %q, of %d bytes, read back as %q, %q, %v", tt.queue, tt.id, job, len(job), queue, id, ok)
		}
	}
	for _, job := range []string{"", "a", "wait:0123", "\x01", "\x02:short", "hashed:ab", "\x01%zz:a"} {
		if queue, id, ok := TaskOf(job); ok {
			t.Errorf("TaskOf(%q) = %q, %q, want none", job, queue, id)
		}
	}
}
