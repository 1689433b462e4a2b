"""Small files that PyTorch 2.13.0 and TensorFlow 2.21.0 wrote, so that readers read more than our files.

They hold our own numbers. zip.pt, legacy.pt (`_use_new_zipfile_serialization=False`) and five.pt
(`pickle_protocol=5`, {"w": x}) are by `torch.save`; with x = torch.arange(6.).reshape(2, 3) / 4 and
y = torch.arange(24.).reshape(2, 3, 4), the first two hold

    {"model": {"w": Parameter(x), "tied": x, "turned": x.t(), "part": y[1:, ::2, 1:3],
               DTYPE: torch.tensor([0, 1, 3]).to(DTYPE) for nine dtypes, "scalar": 2.5,
               "empty": torch.zeros(0, 4)},
     "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}},
                   "param_groups": [{"lr": np.float64(.1), "params": [0]}]},
     "master params": [x], "files": [1, "a.hdf5"], "epoch": 0, "data_loader": None}

one, two (`sharded=True`, on two devices) and parts (with a variable "words" in two parts) are by
`tf.compat.v1.train.Saver` from the variables of VARIABLES; graph-1 is by
`tf.train.Checkpoint(pooler=MODULE).save("graph")`, where MODULE.kernel is VARIABLES' kernel.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import numpy as np

VARIABLES = {
    "bert/pooler/dense/bias": np.arange(3, dtype=np.float32),
    "bert/pooler/dense/kernel": np.arange(6, dtype=np.float32).reshape(2, 3) / 4,
    "empty": np.zeros((0, 4), np.float32),
    "global_step": np.int64(7),
    "half": np.array([0, 1, 3], np.float32),  # stored as bfloat16
}


def write_out(name: str, folder: Path) -> Path:
    """Writes one of these files; returns its path."""
    path = folder / name
    path.write_bytes(zlib.decompress(base64.b85decode(FILES[name].replace("\n", ""))))
    return path


FILES = {
    "zip.pt": r"""
c-pO)U2q%K700h6Tb9>0p-
BiKP!a;AN(qWSELmzo<S0RWEEs1ERD~F2C9SQ6l~!l>D#0mkOoHu%&jbnuTEP9FrL<5AZTWg(GQ$IX=`aio4?Msy3@|*v3o|@0)83D@bX
SfYWOD7}wWa<4&bjB_J?F~9vabW7KmaWmy=V<Opx3sPRIG+-w;9>YN_5kLG3A{E6wGxJLB%X-
26&1^(=fCm*3GIdU1yavODpZti&z5hCIx)KoQK@IA3BQIw2I|WzK(UnmhzTXsOv^4UsEl$qG8RFpmUL1uvWEAE59!)fj=0`brGIT?o`J$
=;9J7YnUn?;V()MU_Qgpo%4}vu~r93_G9STEhE`0`(~h5_Q{?Z=sQ}bF`j{8g#u?DVSoH!7FH^-
Do3(}u&$M0b(uIVca;O>?lQxi)xfObn6o)%ErxRxSeNrtW!<V0?YXVm^QhJ*duQN>vWFth=i2ocHYjib^GY&;VdK1#O(g;s5<PKn(Qdhq
2)(j*7Jel6$^qFk3m0?7k1+%l*u?TPM)Q&Aho5kalcil|y<ljKG+n~jQP@n_J`9(#*rp*Qd!}IvXNECE6o@vNkp#qC%qvx6tU>H&#2Cam
G2svgC^5;2DGWbVU~7)<z`{Ion+uuA@|PRf%NVvFwsUOS!46XF4vx)W*r~uSwlVc8o%-
c2<~3$@yur&dUL3CAyel2vRg`x%=gAnZQQ+EnUMvbjF5Xqu=61V|;Sw;+al0LyLUAJ;cRhw16u5C7N2dHU7jC3%T1{Y%0SDmc9C(uhyqN
;`aNsD0TNKE%4MTuQ*z4l$EUQ)nr!rg;3LIB-
a3zY<IBpEXxB_JsU!C!E_mWKD=DxX=@ltRb=NS&KLU~orGcnW@02W@sG!3xaIPy{hXXm_hi-
!SoUftpCqrCl`cRPj&1rD%h%Py*hYQZlWPY9Do;0_}9V3;KGO`EvvmlzHzFvX^&Rcd$w?sTi7aEPc7hQrh;k~?PLF1dp~)YF_WgJD*IBl
Sr*n(HQtJgHSGEs=0Hd;gvst(|c1B;3ayl6{(GlS&Bp%O2ad3ru6yuwKy*Xcjy$3CDQxw6TgcI6esv%4iZEVp{F?T3+2Z4!?587=wpNj9
v_nu);G9zov<Kl*jiNhQ}57jcw<8dFfCq`Ekpv*KGLhC_FI<PX-yqu;8g;wO*-
Bgz`nx(n6KGfpyig)Cq|vRDwBvgH*y3HL@<hW5Tf{{Ql^XS@?qje+<e#w)ETJ>7k*atN%v^`#}@<r$Ui{OIp#Ev?~2Yf<Nb0keg3De&Vs
l*Q;rGhApC@V!axHzs$h13jB2j{-(fl><u;r8=fD9zspFitMyzT?KP@RTEqtD%@;=DALVr_OXQetXg0h!3NHm^4<o3da%n6M|J3-
h*UVxW{w1Sa5BZC(T%J@H(xu?vL-o+G+!Y8V-
n!(!L`ZFT(e}6sg;{$HjhR+O#d&9;vzg5&>5_|&2=(~#mmeIad8D?u$2Djx_vkdcylUv<)rwZd*~~y&PKA-^rvaq*!{>Byy-
Nnrhjy|63gqE8X=Bf3(#!QbKMWmXL!&WFU-t1ibh-
RX#vq|g<5aRGoXu?io&j*`)OPYCjnE*mDPnVJ8j<qJr|Z{}H`bmaqHr^!NW1Ir_$NNmAo(UXMQo1P8^k^&hISxyCb12~!o&uN4HMf-tVV
2#*b!pKh&@Vdj@UEAULf|$4myuRJ3grHC7`{hm`AWVk7zb?5&G`&&yTOt{2Cafem5RM-
?o{**fR3B4P~geFP>04+T1_=r(^$2r3cw;=U(srx=sJ_)3twj>7c{sT-pBJbMfIe^PgDG{`EM1sn7NLf1d7TpB|R>xvlAQAe%{|<<H+kd
{fVz507kYGylockbjSlI{*CDk%PWQ8Wwln*>s-DW<01peGlpoN)4%gH2EH?fAjs(<L&ArOpi9O-
5YxCyc6_r*3kf<lLB@Mfaqzc|4RjXw&05thE-
^h=Z_kl!?E4|cLPq~OL5bT+i2KZzt0?E67~G{ljAp>x__=i3Esfjlx)q?Ne4fm(of2Hy_C&Fmk~%L9t}sr@qtt{k&1;AvHo}}8BRo_(Ns
K~Oh!_%c%(lWj-_ang>OE(BS_*1vM4=XR;ish#Y0c;g2=`H1GFl|!^<j{YJC?v*%7G~ARa!}xB$oJ0Sit%tqk$-
(C1>T3?TQRrBy0+dC4VxB!GmoMypQjs%~AdThK*Xbz)a^>%J0o(N>+<-
`u*gB<NzTI<YUgb?=F~{snmvx`$hLV~?PVx9Y?W;MRR6>JqIwv3|RCdwK=kK&wtHoh|bdb;<9p8|f2tsaBm>YI|I|heTau!G;k_tXuewO
W4>kC$GTbSbc^lT(D)tg6I}bxr7V$j9Aay!uK8FBG0l|V%E8Y$_lhZ@f()?{>{#v=ld>gPO#<rKnK5mvts_3<ENjL(d_ExF=$xs^mEN>c
0a%O{~X7*<^
""",
    "legacy.pt": r"""
c-noI_jlV=6vyR}Q8j7HZYd*dhY`Hu0i|&Vp{?4qRT*LgSFx4YMYjBvp3<gZYDPxOD!VNO!Y;e)@*Agr3BU3izj6-ez<rY9M5#dbSC-
!R+^ehi?sY4COw|8AJ^WYSfirv74Yb0${)o`I2_dGe5d@)O8q6pedT~-
St*TK+hz2OV)T37!)3u^jFIUw%!gGp9jclr+6|L%F%|fJ!XiVv#Myq0&3>{KfiO^lO&d@1El_+Nz^$B!IQQKay$;a1>vZf<cBD1<yVr11
4cbjF+)XH0{B_<-
=FC!9DLNxXuq9taSrOH6jW>wu1i>5YaSM_qSp_*z<W11<V<3ENlt!^1+aWW~QGZs_2xUV!)ozT$bP7#N7LuLEiMiJf0DjJhdXEVuMDw)g
W6PX-VIFD6o*bt@85r&m}B|!>Hks0(z5h*l--lG-
n@hXPZGS<vFHy6#~Vi}h>QD9ZAj7uxzLZzz`XyUSpi@v;#zQRSXb<yh>u9UG}>EtxqtP}65|KnZl@vh;#h!mc|wNi*<`&{024A;xJ!SRm
b$Z+F@w0t6;j;B+p3~nOYTB6;&SL!89SPIYL7O6+-
mO`_Lxx{{kTV>ql#CV*?G?T{dF4T+kR>L0CwRWiQ@cW%g<l|`!kfjJ&y3_G{8gVH!jf86<$&iwfUbK+NV9;k_o2rku`57NSpGoABX=FWq
&g17f|1Ot*H^T-
Q_bA;oZEV57MxTMr!)|li$dEr=iNRDpiGpWjlV@ZzH?qYwvX$Xp8N<#tpp8O7y3c1}CvBKEeVhLgvhhqVhwUDHheww<eWy#`#V{gc_X0h
Y#2z1gdwp@K?_K74CN-FZ?7{bW@cTLZ0T=!t!$UHZ1vmxgVIO=S&jM}yBg^nvddGOw!$0QXM>+m+7hh!9FGF>fB;j)y^U=3dRI?2)Er;i
mag;r{=E27~e8PoS7^*T3IKJBs{R#hzonnhCQ(s2UrQ>nbJbK-
u8=T&7>0mHrSdQyshM|M`;ndWI+som3S}~Iz{GbOv#Nkse{4m3lGM;j_zEx6n)kHIJ>(dg?CX#rXSRrB^Ay$9C%V;q?BjZ`;@wHlmP2su
V{hr8Xvl%>32!RmO+#NxR&R|B0@@zEg;^r8R$~a~>@q)5~rWYv<t7Vm`c+u&9NufpoFE{auvs)KR%W)}WS=N{{$7rx>jp~SrSDSdvt0PQ
h8eVVW4M}L?O=qrls8LiWC-7FV!^w0$6UW=+aF`rE;iS)LoaFI4<vRNg!)Y1sT9(q|COfrOoG=Z$Vd1?|yx+upObPQ+W#WTU-
L5sJ28t!a)COv{&Z??us#BsHcM%`D1H>{fgCah1CXVOu@zJ?id?Mr1m=tlU)&_hwGBUE`A3B_qBru#AD-
pP?l`K)K^9vE5E30Yn`BUdlwm-iP;S1+o>nf|(6ZmolU&;7-
2H(i|*6DB_!NS>5d?yL2t=dktuBjH4!alF_`%(N*S+6=#9k1$Ct$!TFPcbRv5Y&N6d3+E*Ywm(*7^Mn+kpyKW-SO90q%23(80SWK*&gL(
J0Mqwf(lPKXh}wbQgJjWxpf4UpU$8p+ZB|)x`UF=il8Mf24#?yK^wm(Xv6jft-
@8>0RN+K;qm8?``caU^tHD((uw*Cq!wv@DAexjD=cAc5H>F-
FN|DhU+X7xiv{|UTBLc>Z=~Nz!X`mjL+T^NNd?j#(tc8d)FRE1j+0K1=1FHrXG!NaMV8noEcMaxD6+&O-m-
Yzz6wPGFGFFU^R1zO0p)+cGy
""",
    "five.pt": r"""
c-
o~@&ui0A9DiwST5LB^HnuU;YbV+@X_K|WRt=I%4t5nicnMkZR>QJpCa)a|LO~n|@wDeoBKjxjLBan*&)!7TlX%mcFTZM%(v0aBULHxlpU
?O6eed&LN2X5!P%MIpm;v)(+Ze)CT}5hjZ^x9xGvH1-
M)_w)A>bi)seSC0k!5RltI7Zwri0zHiVe30hN&wE_8rSsh8#Y`m5N(%NTS+<*v<P0f|N{4MK{CGhlH+%U0T~4V3|R9QwDNQrVp@8%hUmW
;+8baG@*tJt552bZrD1sp?=-
a5W%i=F~VK!R6BB^xbl?#{fa2`MrUfnbKqRiaCO_VcU7beq3sZINnD!jI||n0fA{0lBZ@FknfwdjO2{8}uBfKb>+ixol0;#8iOdiho`Cl
Lz3(|vB9|#(7Knj>t@{XC-f~Ie#y{4L!ZZ*vp{L>T`sXEvRADkTl)$yWu3D{0;`;vy2v|oO<k1G;Dj6d(Uba0&-
7jA+ERr9KnTpDw8YmiX_r()Ps-N~MeR$Ekb^Q7-13ol>-@F5DgE-)U>N!|3bV+1Sz7{OM#x>bii)Yy;-w+!08Yk4&>O!-
{@~prK4VDvx7F+jJK7afAs6up9e3g_ZcC0ggL}n(GC+>kXH17Vn1ng%7O`WJTL)^X#35HDyOgl4alDPk76C@ualCkg8*tk<l3GD40i2F4
SjBk870sIyLr}P}(jO7HfOM@(%bYzCP6sDf1FOOk`)cl?b=3jI$6P*9+O+I)JE~`8fU<!VIkoyNHOITF
""",
    "one.index": r"""
c-muNVB=tvV&Y(A5aUluEh^D3$j{G7Ez(a(%_~mTPs&Uz=3o?J5n|$C*5EOH$r)fT#3q`ZT9lWX0~F@~iZg-
a6nHcwOnpxtFlS&DOwBDQsRT;02{8brSQJ!DZ@g++#K6s)o|B)Hm=j-Il3KvQDa4?lqQPOh`}%xA1{T4L#GEt^K8QUEIvQ-
I(mNR08GwKhM9fWgx&h}L__S~X10!=L!(v9b*tUz>F)J83wleZF5Cq}B8@g3W-ERW`J-#op
""",
    "one.data-00000-of-00001": r"""
c-muN0D%U3AmP9OVcP)-Am70rBEG<$odE_K>>V5cbd&{P
""",
    "two.index": r"""
c-muNVB=ttV&Y(A5aUluEh^D3$j{G7Ez(a(%_~mTPs&Uz=3o?J5n|$C*5EOH$r)fT#3q`ZT9lWX0~F@~iZg-
a6nHcwOnpxtFlS&DOwBDQsRT;02{8brSR@!tZ@g++#K6s)o|B)Hm=j-
Il3KvQDa0VbsKH^n`}%xA1{UFr#GEt^K8QUMj0zkYY^KsX7}*(sfDuHPNvygK=N$O7a03G)b0))5M!48@cGiij7&*2x@-
q+w;lCTYRZ87&0{|8JE_D
""",
    "two.data-00000-of-00002": r"""
c-muN0D%U3AmP9OVcP)-Am70rBEG;L05?el8U
""",
    "two.data-00001-of-00002": r"""
c-muUfPn^k2L}KH?Eyy
""",
    "parts.index": r"""
c-
muNVB=tvV&Y(A;1gvi&o4?TW?*DwYG`U`;$Rfw5MttB0$~Ls4FOYS^V7SzSVWu9<(!~$3}XCAsYNCF1^M|osYUuJsd>ez`bn9I#X!|8K$
XlIJf<%>1MG#^M6*+i@=|k<Okq~w(U36pJ$b;KfmJXyx1gjFD9I+o0F+`;P%*vns%a4eH*b1Qeo|sid~r!?0SBiLgMx|%hw1L?^931L1T
zwI(m41a_9*CRu$fBlU}R@tRRVhnY7t11$%=!ENq`B2t+=>YIG}6>AYcR$waJ@R;G6@W7H(i*WUgT7M<@uKxBA}{CXR(n{0sy^`0s{pl~
VWH01h=j{{
""",
    "parts.data-00000-of-00001": r"""
c-muN0D%U3AmP9OVcP)-Am70rBEG<$odE_K>>V5+qPQ^tek%)D
""",
    "graph-1.index": r"""
c-muNVB=tvV&Y(Akl~AW_HcFf4)FK%3vqPvagFzP@^W<!iFXfj4DjG!7h+IQ(74WMYF^P8#GoNske{EETBM(yT9lWXqp#-
}5)$O;6dK|htRLnW<O$Xv=I9gZ%E2haA;iSN1jNh=92yd)z9$cuGpKVHCzhqgC+C;ul>kk_qn%TTL4(7TvGkrJ0}wERi0kze&EcE_pB8R
lU}P>~*vtqQ`@Tf~$PPx1qm29v1VQ-khHjNo_uBwHFgcU
""",
    "graph-1.data-00000-of-00001": r"""
c-
muRKn4wVK*FAZ!2yUHfOvuZMaIal+x5AWxVShNh1d%6^K(**xCA(ugm{V*%TnW$^GoweQj4^hI2gGEfNGe9*s@cL@=|laBECZITzp}UL7
t9IKCba$jy|ETsQRSTk$L)hjv*mIo=%}5uEF}K+Q7zn3Atbx#}SrTl$n^6lPaYFahyKHegb9z06(}sfB
""",
}
