#!/usr/bin/env bash
# Programs under `shale run` and the same ones on the host: what they print and what they leave
# has to be the same. Each runs as a client at once, after some calls, and never.
#
#   scripts/suites/run-programs.sh DIRECTORY
. "$(dirname "$0")/tally.sh"
. "$(dirname "$0")/../volume.sh"
suite_begin run-programs "${1:-}"
need bash dash perl python3 gcc tar gzip awk sed

scenario() { # scenario NAME: a script on standard input, with the shell it names in its first line
    local name=$1 calls
    cat >"$host/$name"
    mkdir -p "$host/plain-$name"
    ( cd "$host/plain-$name" && timeout 60 "$(head -n 1 "$host/$name" | cut -c 3-)" "$host/$name" ) \
        >"$host/$name.expected" 2>&1 || { count 0 1; echo "FAILED  $name on the host"; }
    for calls in 0 8 1000000000; do
        check "$name, warm calls $calls" same "$name" "$calls"
    done
}

same() {
    local name=$1 place=$work/$1-$2
    mkdir "$place"
    ( cd "$place" && SHALE_WARM_CALLS=$2 timeout 60 "$SHALE" run -- \
        "$(head -n 1 "$host/$name" | cut -c 3-)" "$host/$name" ) >"$host/found" 2>&1
    local status=$?
    diff "$host/$name.expected" "$host/found" && diff -r "$host/plain-$name" "$place" && [ $status = 0 ]
}

for shell in dash bash; do
    scenario "$shell" <<SCRIPT
#!$(command -v $shell)
$(cat <<'BODY'
echo a > f; echo b >> f; (echo c; echo d) >> f; cat f
{ echo e; /bin/echo g; echo h; } >> f
exec 5<>f; read x <&5; read y <&5; echo $x$y; echo Z >&5; exec 5<&-
exec 6>>f; echo z >&6; (echo in a child >&6); sh -c 'echo in another >&6'; exec 6>&-
cat f; wc -l < f; cat < f > f2; cmp f f2 && echo same
cat > here <<END
one $x
two
END
while read line; do echo "<$line>"; done < here
sort -r here | tee sorted | head -n 1
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $i; done > numbers
while read n; do echo $((n * n)); done < numbers > squares 2> errors
(exec 3< numbers; read a <&3; (read b <&3; echo $a $b); read c <&3; echo $c)
ls nothing 2>> errors || true; wc -l < errors
: > empty; test -s empty || echo empty
BODY
)
SCRIPT
done

scenario coreutils <<'SCRIPT'
#!/bin/bash
seq 1 20000 > s; cp s t; cmp s t && echo same; cp --reflink=never --sparse=always s u; mv u v
dd if=s of=d bs=777 status=none; dd if=/dev/zero of=d bs=1 count=5 seek=3 conv=notrunc status=none
sha256sum s t v d | cut -c 1-64; split -l 3000 s part-; cat part-* | cmp - s && echo joined
shuf --random-source=s s | sort -n | cmp - s && echo sorted
sort -S 100K -T . s | tail -n 2; truncate -s 100 t; stat -c '%s %F' t; truncate -s 200000 t; tail -c 3 t | od -c
tac s | head -n 3; head -c 5000 s | tail -n 1; fold -w 7 d | md5sum; install -m 640 s i; stat -c %a i
comm -12 s <(sort s) 2>/dev/null | wc -l; join <(seq 5) <(seq 3 9); paste -d, part-aa part-ab | head -n 1
tee one two < s > three; cmp one three; ln s linked; ln -s s soft; cat soft | wc -c; cat linked >> three
wc three; printf 'x%.0s' {1..5000} > xs; tr x y < xs | md5sum; cut -c 1-3 s | uniq -c | sort -rn | head -n 2
tail -n +19990 -f s --pid=$$ & tailing=$!; sleep 0.2; kill $tailing; wait $tailing 2>/dev/null
nl s | tail -n 1; expand s | cksum; base64 s | base64 -d | cmp - s && echo coded; csplit -s s 100 200; ls
rm linked soft i xs; mkdir deep; cp -a part-a* deep; rm -r part-a*; find . -type f | sort
SCRIPT

scenario archives <<'SCRIPT'
#!/bin/bash
mkdir tree; for i in $(seq 1 60); do head -c $((i * 997)) /dev/zero | tr '\0' "a" > tree/f$i; done
tar cf a.tar --mtime=@0 --sort=name --owner=0 --group=0 tree; md5sum < a.tar; mkdir out; tar xf a.tar -C out
diff -r tree out/tree && echo same; tar czf a.tgz --mtime=@0 --sort=name --owner=0 --group=0 tree
tar tzf a.tgz | wc -l; gzip -dc a.tgz | cmp - a.tar && echo same; gzip -n a.tar; gunzip a.tar.gz; xz -k a.tar
xz -dc a.tar.xz | cmp - a.tar && echo same; tar --delete -f a.tar tree/f7; tar tf a.tar | wc -l
tar rf a.tar --mtime=@0 --owner=0 --group=0 tree/f7; tar df a.tar tree/f7 && echo there; rm a.tgz a.tar.xz
SCRIPT

scenario editors <<'SCRIPT'
#!/bin/bash
seq 1 3000 > a; sed -i 's/5/five/g' a; sed -n '50,55p' a; awk '{ s += length($0); print s > "sums" } END { print s }' a
grep -c five a; grep -rn five . | wc -l; cp a b; echo new >> b; diff -u a b > p; patch -s a < p; cmp a b && echo patched
perl -pi -e 's/five/5/g' a; tail -n 2 a; find . -name 'a*' -newer nothing 2>/dev/null; rm p
SCRIPT

scenario perl <<'SCRIPT'
#!/usr/bin/perl
use Fcntl qw(:DEFAULT :seek :flock); $| = 1;
open(my $f, '+>', 'p') or die; print $f "line $_\n" for 1 .. 5000; seek $f, 0, SEEK_SET;
my $n = 0; $n++ while <$f>; print "$n ", tell $f, "\n"; truncate $f, 100 or die; print -s $f, "\n";
sysopen(my $g, 'p', O_RDWR | O_APPEND) or die; syswrite $g, "end"; sysseek $g, -3, SEEK_END; sysread $g, my $b, 3; print "$b\n";
flock($g, LOCK_EX) or die; if (!fork) { syswrite $g, "child"; exit } wait; print sysseek($g, 0, SEEK_CUR), "\n";
my @s = stat 'p'; print "$s[7]\n"; open(my $d, '<&', $g) or die; sysseek $d, 0, SEEK_SET; sysread $g, $b, 6; print "$b\n";
local $/; open(my $all, '<', 'p'); print length(<$all>), "\n"; rename 'p', 'q'; print -e 'p' ? 1 : 0, -s 'q', "\n";
SCRIPT

scenario python <<'SCRIPT'
#!/usr/bin/python3
import io, mmap, os, shutil, subprocess, tempfile, threading
with open('a', 'w+b', buffering=0) as f:
    for i in range(2000): f.write(b'%06d' % i)
    f.seek(-6, 2); print(f.read(), f.tell()); f.truncate(30); print(os.fstat(f.fileno()).st_size)
    print(os.pread(f.fileno(), 6, 12), os.pwrite(f.fileno(), b'xx', 40), f.seek(0, 2))
    print(os.preadv(f.fileno(), [bytearray(3), bytearray(5)], 0), os.writev(f.fileno(), [b'1', b'', b'234']))
    with mmap.mmap(f.fileno(), 0) as m:
        m[0:2] = b'MM'; print(m[:8], len(m)); m.flush()
        os.pwrite(f.fileno(), m[:6], 20)
    print(os.pread(f.fileno(), 100, 0))
with open('t', 'w') as f: print(*range(30000), sep='\n', file=f)
print(sum(map(int, open('t'))))
def many(k):
    with open(f'n{k}', 'ab') as f:
        for i in range(300): f.write(b'x' * 100); f.flush(); os.fsync(f.fileno())
threads = [threading.Thread(target=many, args=(k,)) for k in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]; print([os.path.getsize(f'n{k}') for k in range(4)])
with open('o', 'w') as out:
    out.write('first\n'); out.flush()
    subprocess.run(['echo', 'second'], stdout=out, check=True); subprocess.run('echo third', shell=True, stdout=out)
    out.write('fourth\n')
print(open('o').read())
with tempfile.NamedTemporaryFile(dir='.') as t: t.write(b'temporary'); t.flush(); print(os.path.getsize(t.name))
shutil.copyfile('t', 'u'); shutil.copytree('.', '../' + os.path.basename(os.getcwd()) + '-copy'); shutil.rmtree('../' + os.path.basename(os.getcwd()) + '-copy')
fd = os.open('lock', os.O_RDWR | os.O_CREAT); os.lockf(fd, os.F_LOCK, 10); os.close(fd)
r, w = os.pipe(); os.write(w, b'pipe'); out = os.open('piped', os.O_CREAT | os.O_WRONLY); print(os.splice(r, out, 4)); os.close(out); print(open('piped').read())
SCRIPT

scenario compiled <<'SCRIPT'
#!/bin/bash
cat > p.c <<'END'
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
static const char text[20000] = "constant, in a page of the program's own file";
int main(void) {
    int fd = open("out", O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int i = 0; i < 100; i++) if (write(fd, text, sizeof text) != sizeof text) return 1;
    FILE *f = fopen("stream", "w"); for (int i = 0; i < 9999; i++) fprintf(f, "%s\n", text + i % 40); fclose(f);
    printf("%ld %zu\n", (long)lseek(fd, 0, SEEK_CUR), strlen(text)); return 0;
}
END
gcc -O1 -o p p.c && ./p && cp p q && ./q && rm p q; md5sum out stream; rm out
SCRIPT
suite_end
